package protocol

import (
	"bytes"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// A serverError is what a server says went wrong.
type serverError struct {
	message string
	code    int    // an HTTP-like code inside the error; 0: none
	kind    string // its type, or its code where that is a word
}

// maxError bounds the text of an error in a record, in bytes.
const maxError = 500

// parseError reads the error formats of the engines and gateways: an "error"
// object or string, an object that is itself the error, FastAPI's "detail",
// and plain text or HTML.
func parseError(body []byte) serverError {
	var e serverError
	body = bytes.TrimSpace(body)
	doc := gjson.Result{}
	if len(body) > 0 && body[0] == '{' && gjson.ValidBytes(body) {
		doc = gjson.ParseBytes(body)
	}
	at := doc.Get("error")
	switch {
	case at.IsObject():
	case at.Type == gjson.String && at.Str != "":
		e.message = at.Str
		e.kind = doc.Get("error_type").Str
		at = doc
	default:
		at = doc
	}
	for _, name := range []string{"message", "detail", "msg", "error_description", "details"} {
		if v := at.Get(name); e.message == "" && v.Exists() && v.Type != gjson.Null {
			e.message = v.String()
			if first := v.Get("0.msg"); v.IsArray() && first.Exists() { // FastAPI validation
				e.message = first.String()
				if loc := v.Get("0.loc"); loc.Exists() {
					e.message += " at " + loc.Raw
				}
			}
		}
	}
	for _, name := range []string{"code", "http_status_code", "status", "status_code"} {
		v := at.Get(name)
		if n, err := strconv.Atoi(strings.TrimSpace(v.String())); err == nil && e.code == 0 {
			e.code = n
		} else if v.Type == gjson.String && e.kind == "" {
			e.kind = v.Str
		}
	}
	if t := at.Get("type").Str; t != "" {
		e.kind = strings.TrimSpace(t + " " + e.kind)
	}
	if e.message == "" {
		e.message = e.kind
	}
	if e.message == "" {
		e.message = plainText(body)
	}
	// Longer than a record's error: where the end is cut, no secret may lie
	// across it that is yet to be taken out.
	e.message = clip(e.message, 4*maxError)
	return e
}

// overload tells whether an error inside a stream says that the server has too
// much to do, which outside of one would be a 429 or 503.
func (e serverError) overload() bool {
	if e.code == http.StatusTooManyRequests || e.code == http.StatusServiceUnavailable {
		return true
	}
	if e.code != 0 && e.code < 500 {
		return false
	}
	kind := strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(e.kind))
	for _, word := range []string{"ratelimit", "overloaded", "toomanyrequests", "serviceunavailable"} {
		if strings.Contains(kind, word) {
			return true
		}
	}
	text := strings.ToLower(e.message)
	for _, words := range []string{"overloaded", "too many requests", "queue is full", "server busy", "rate limit", "maximum pending requests", "service unavailable"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// plainText makes one line of a body that is no JSON; of HTML its title.
func plainText(body []byte) string {
	if len(body) > 0 && body[0] == '<' {
		lower := bytes.ToLower(body)
		if _, after, ok := bytes.Cut(lower, []byte("<title>")); ok {
			start := len(lower) - len(after)
			if n := bytes.Index(after, []byte("</title>")); n >= 0 && start+n <= len(body) && len(lower) == len(body) {
				return "HTML: " + string(body[start:start+n])
			}
		}
		return "HTML: " + string(excerpt(body))
	}
	return string(body)
}

// excerpt returns the start of data, for an error's text.
func excerpt(data []byte) []byte {
	const n = 120
	if len(data) <= n {
		return data
	}
	return append(append([]byte(nil), data[:n]...), "..."...)
}

// clip makes s one line of valid UTF-8 and of at most n bytes.
func clip(s string, n int) string {
	if len(s) > 4*n {
		s = s[:4*n]
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// retryAfter reads how long the server asks to be left alone; 0: it does not
// say. now serves dates where the answer has no date of its own.
func retryAfter(h http.Header, now time.Time) time.Duration {
	const most = 30 * 24 * time.Hour
	duration := func(v string, of time.Duration) time.Duration {
		f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
		if err != nil || !(f > 0) { // not a number, too
			return 0
		}
		return time.Duration(min(f, float64(most/of)) * float64(of))
	}
	if d := duration(h.Get("Retry-After-Ms"), time.Millisecond); d > 0 {
		return d
	}
	v := h.Get("Retry-After")
	if d := duration(v, time.Second); d > 0 {
		return d
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return min(max(at.Sub(now), 0), most)
}

// A redactor takes secrets out of texts.
type redactor struct{ secrets []string }

// newRedactor collects what must never reach a record: the values of the
// user's headers (but those that say only what the content is), and what the
// URL hides in its user part and query, and whatever else is named.
func newRedactor(u *url.URL, named []string, header http.Header) *redactor {
	var r redactor
	add := func(s string) {
		if len(s) >= 4 {
			r.secrets = append(r.secrets, s)
		}
	}
	for _, s := range named {
		add(s)
	}
	for name, values := range header {
		switch http.CanonicalHeaderKey(name) {
		case "Content-Type", "Accept", "User-Agent", "X-Request-Id":
			continue
		}
		for _, v := range values {
			add(v)
			if f := strings.Fields(v); len(f) > 1 { // "Bearer secret"
				add(f[len(f)-1])
			}
		}
	}
	if u != nil {
		if p, ok := u.User.Password(); ok {
			add(p)
		}
		for _, values := range u.Query() {
			for _, v := range values {
				add(v)
				add(url.QueryEscape(v))
			}
		}
	}
	// Longer ones first, or one that begins another would leave its rest.
	slices.SortFunc(r.secrets, func(a, b string) int { return len(b) - len(a) })
	return &r
}

func (r *redactor) clean(s string) string {
	for _, secret := range r.secrets {
		s = strings.ReplaceAll(s, secret, "[redacted]")
	}
	return s
}

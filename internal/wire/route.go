package wire

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// route is the way to a request's server.
type route struct {
	network, addr string   // what is dialled: the server, its proxy, or a Unix socket
	origin        string   // host:port of the server, or the socket's path
	host          string   // the Host header
	name          string   // for TLS
	tls           bool     // https
	h2c           bool     // HTTP/2 without TLS
	proxy         *url.URL // nil: none
	uri           string   // the request's target, as the request line has it
}

// poolKey tells which connections may serve a request.
type poolKey struct{ addr, origin string }

func (r *route) key() poolKey {
	origin := r.origin
	if r.tls {
		origin = "https:" + origin
	} else if r.proxy != nil {
		origin = "" // any server, by way of this proxy
	}
	return poolKey{r.addr, origin}
}

func (c *Client) route(u *url.URL) (*route, error) {
	if u == nil {
		return nil, errors.New("the request has no URL")
	}
	r := &route{network: "tcp", uri: u.RequestURI()}
	switch u.Scheme {
	case "unix":
		sock, path := splitSocket(u.Path)
		if sock == "" || u.Host != "" {
			return nil, fmt.Errorf("URL %q: want unix:///path/to.sock/v1/..., with three slashes", u.Redacted())
		}
		r.uri = (&url.URL{Path: path, RawQuery: u.RawQuery, ForceQuery: u.ForceQuery}).RequestURI()
		r.network, r.addr, r.origin, r.host, r.h2c = "unix", sock, sock, "localhost", c.opt.H2C
	case "http", "https":
		r.tls = u.Scheme == "https"
		r.h2c = c.opt.H2C && !r.tls
		if u.Hostname() == "" {
			return nil, fmt.Errorf("URL %q has no host", u.Redacted())
		}
		host, err := httpguts.PunycodeHostPort(u.Host)
		if err != nil {
			return nil, fmt.Errorf("URL %q: %w", u.Redacted(), err)
		}
		name, port := (&url.URL{Host: host}).Hostname(), u.Port()
		if port == "" {
			port = map[bool]string{false: "80", true: "443"}[r.tls]
		}
		r.origin = net.JoinHostPort(name, port)
		r.addr = r.origin
		r.name, _, _ = strings.Cut(name, "%") // a zone means nothing to the other side
		r.host = strings.Replace(host, name, r.name, 1)
		if !r.h2c { // proxies know nothing of that
			if r.proxy, err = c.proxy(u); err != nil {
				return nil, fmt.Errorf("proxy: %w", err)
			}
		}
		if p := r.proxy; p != nil {
			if p.Scheme != "http" {
				return nil, fmt.Errorf("proxy %s: only http:// proxies are supported", p.Redacted())
			}
			port := p.Port()
			if port == "" {
				port = "80"
			}
			r.addr = net.JoinHostPort(p.Hostname(), port)
			if !r.tls {
				r.uri = "http://" + r.host + r.uri
			}
		}
	default:
		return nil, fmt.Errorf("URL %q: want http, https or unix", u.Redacted())
	}
	for i := range len(r.uri) {
		if r.uri[i] <= ' ' || r.uri[i] == 0x7f {
			return nil, fmt.Errorf("URL %q holds a blank or control character", u.Redacted())
		}
	}
	return r, nil
}

// splitSocket splits the path of a unix URL into the socket's path and the
// request's.
func splitSocket(p string) (sock, path string) {
	const ext = ".sock"
	for i := 0; ; {
		j := strings.Index(p[i:], ext)
		if j < 0 {
			break
		}
		i += j + len(ext)
		if i == len(p) || p[i] == '/' || p[i] == ':' {
			sock, path = p[:i], strings.TrimPrefix(p[i:], ":")
			return sock, absolute(path)
		}
	}
	sock, path, _ = strings.Cut(p, ":")
	return sock, absolute(path)
}

func absolute(path string) string {
	if !strings.HasPrefix(path, "/") {
		return "/" + path
	}
	return path
}

// proxyAuth returns the value of Proxy-Authorization, or "".
func (r *route) proxyAuth() string {
	if r.proxy == nil || r.proxy.User == nil {
		return ""
	}
	password, _ := r.proxy.User.Password()
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(r.proxy.User.Username()+":"+password))
}

// method returns the request's method.
func (r *Request) method() string {
	switch {
	case r.Method != "":
		return r.Method
	case len(r.Body) > 0:
		return http.MethodPost
	}
	return http.MethodGet
}

// check refuses what would break the framing of a request.
func (r *Request) check() error {
	if !httpguts.ValidHeaderFieldName(r.method()) { // both are tokens
		return fmt.Errorf("malformed method %q", r.Method)
	}
	for name, values := range r.Header {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("malformed header name %q", name)
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) {
				return fmt.Errorf("header %s: its value holds a line end or control character", name)
			}
		}
	}
	return nil
}

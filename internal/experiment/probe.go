package experiment

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/protocol"
	"github.com/trueload/trueload/internal/spec"
	"github.com/trueload/trueload/internal/unit"
	"github.com/trueload/trueload/internal/wire"
)

// Probe asks a target what can be measured of it. Nothing is written.
func Probe(ctx context.Context, exp *spec.Experiment, opt Options) (*protocol.ProbeReport, error) {
	if opt.Lookup == nil {
		opt.Lookup = os.LookupEnv
	}
	target, err := exp.Target.Resolve(opt.Lookup)
	if err != nil {
		return nil, err
	}
	conn, err := newWire(exp, opt)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client, err := protocol.New(requestConfig(exp, target, newSalt()), conn, nil)
	if err != nil {
		return nil, err
	}
	r := client.Probe(ctx)
	return &r, nil
}

// probe probes before a run and lets the requests follow what was found:
// the dialect, the model, what is refused. A target that cannot be measured
// (no connection, or the probe's prompt was answered by a client error) ends the
// run before it begins; one that is only busy or failing does not.
func (f *findings) probe(ctx context.Context, cfg *protocol.Config, exp *spec.Experiment, conn *wire.Client, man *Manifest) {
	man.Target = TargetFacts{URL: bareURL(cfg.BaseURL), API: string(cfg.API), Model: cfg.Model, TemplateTokens: -1, LaterTokens: -1}
	client, err := protocol.New(*cfg, conn, nil)
	if err != nil {
		f.add("target", analysis.Error, err.Error(), "correct target in the experiment file")
		return
	}
	r := client.Probe(ctx)
	man.Target.Dialect, man.Target.EngineVersion, man.Target.MaxModelLen = string(r.Dialect), r.Version, max(r.MaxModelLen, 0)
	man.Target.TemplateTokens, man.Target.LaterTokens = r.TemplateTokens, r.LaterTokens
	man.Target.CacheSalts = r.CacheSalts
	cfg.Dialect = r.Dialect
	if cfg.Model == "" {
		cfg.Model, man.Target.Model = r.Model, r.Model
	}
	cfg.NoUsage = r.RefusesUsage
	cfg.FreeLength = cfg.FreeLength || r.RefusesForcing
	cfg.EventUsage = r.EventUsage
	if _, err := protocol.New(*cfg, conn, nil); err != nil { // what was found may not fit what is asked
		f.add("target", analysis.Error, err.Error(), "correct target in the experiment file")
		return
	}
	switch {
	case !r.Reached:
		f.add("target-unreached", analysis.Error, r.Error, "check target.url; trueload probe "+man.Target.URL+" says more")
	case !r.Answered:
		message := "the probe's prompt got no good answer: " + r.AnswerError
		if r.AnswerStatus > 0 && r.AnswerStatus != http.StatusOK {
			message = fmt.Sprintf("the probe's prompt was answered with %d %s", r.AnswerStatus, http.StatusText(r.AnswerStatus))
			if r.AnswerError != http.StatusText(r.AnswerStatus) {
				message += ": " + r.AnswerError
			}
		}
		remedy := "trueload probe " + man.Target.URL + " says more"
		switch r.AnswerStatus {
		case http.StatusUnauthorized, http.StatusForbidden:
			remedy = "give a key that is taken: --set target.headers.Authorization='Bearer ${API_KEY}'"
		case http.StatusNotFound:
			remedy = "is target.url the server's base address, and target.model one that it serves? " + remedy
			if len(r.Models) > 0 {
				remedy = "set target.model to one that the server has: " + strings.Join(r.Models[:min(len(r.Models), 5)], ", ")
			}
		}
		f.add("target-refused", analysis.Error, message, remedy)
		// A server that is overloaded or broken is still one to measure; one that
		// does not take these requests (401, 404) would refuse them all.
		s := r.AnswerStatus
		f.reached = s < 400 || s > 499 || s == http.StatusTooManyRequests || s == http.StatusRequestTimeout
	default:
		f.reached = true
		for _, a := range r.Advice {
			f.add("probe", analysis.Note, a, "")
		}
	}
}

// bareURL is a URL without credentials or query.
func bareURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "?"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

// WriteProbe writes a probe's report for a terminal.
func WriteProbe(w io.Writer, r *protocol.ProbeReport) error {
	yes := func(ok bool) string {
		if ok {
			return "yes"
		}
		return "no"
	}
	rows := [][2]string{{"reached", yes(r.Reached)}}
	add := func(k, format string, args ...any) { rows = append(rows, [2]string{k, fmt.Sprintf(format, args...)}) }
	if r.Reached {
		engine := string(r.Dialect)
		if engine == "" {
			engine = "unknown"
		}
		add("engine", "%s %s (%s)", engine, r.Version, strings.Join(r.Evidence, "; "))
		add("model", "%s", r.Model)
		if r.MaxModelLen > 0 {
			add("longest sequence", "%d tokens", r.MaxModelLen)
		}
		switch {
		case r.Answered:
			add("answers", "yes")
		case r.AnswerStatus > 0:
			add("answers", "no, %d: %s", r.AnswerStatus, r.AnswerError)
		default:
			add("answers", "no: %s", r.AnswerError)
		}
	}
	if r.Answered {
		add("streams", "%s; headers %s and first output %s after the request", yes(r.Streams), unit.Duration(r.HeadersAfter), unit.Duration(r.FirstOutputAfter))
		add("counts tokens", "%s; on every event: %s; cached ones: %s", yes(r.Usage), yes(r.EventUsage), yes(r.CachedTokens))
		add("forces lengths", "%s; asked %d, got %d", yes(r.ForcesLength), r.LengthAsked, r.LengthGot)
		if r.TemplateTokens >= 0 {
			add("chat template", "%d tokens around a prompt, %d more for each later turn; %.3g tokens for a word", r.TemplateTokens, max(r.LaterTokens, 0), r.TokensPerWord)
		}
		if r.CacheHit >= 0 {
			add("warm prefix", "%d cached tokens when the same prompt came again; cache_salt keeps runs apart: %s", r.CacheHit, yes(r.CacheSalts))
		}
	}
	for _, row := range rows {
		if _, err := fmt.Fprintf(w, "%-17s %s\n", row[0], strings.TrimSpace(row[1])); err != nil {
			return err
		}
	}
	for _, a := range r.Advice {
		if _, err := fmt.Fprintf(w, "  → %s\n", a); err != nil {
			return err
		}
	}
	return nil
}

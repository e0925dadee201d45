// Package experiment holds the procedures that users start: Run takes an
// experiment to a result directory, Probe says what can be measured of a
// target, Summarize makes a result's summary again. They are functions with
// local variables that read from top to bottom; what they join knows nothing of
// each other.
package experiment

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/loadgen"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/protocol"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/simulate"
	"github.com/trueload/trueload/internal/spec"
	"github.com/trueload/trueload/internal/store"
	"github.com/trueload/trueload/internal/unit"
	"github.com/trueload/trueload/internal/wire"
	"github.com/trueload/trueload/internal/workload"
)

// Options are what a run needs beside its experiment. The zero value writes to
// a new directory in the working directory and shows nothing.
type Options struct {
	// Dir is the result directory; empty: trueload-<name or time>.
	Dir string
	// Version is the tool's own, for the manifest.
	Version string
	// Log takes messages and the progress of the run; nil: nowhere. Terminal says
	// that it is one, so that the progress is one line that is rewritten.
	Log      io.Writer
	Terminal bool
	// Stop ends the sending when it is closed: the first Ctrl-C. The context's
	// end is the second: everything stops now.
	Stop <-chan struct{}
	// Lookup finds environment variables; nil: os.LookupEnv.
	Lookup func(string) (string, bool)
	// Simulated marks a target that is a simulated engine.
	Simulated bool
	// Simulate sends nothing: engines that live in virtual time answer the plan,
	// as fast as they can be computed. What the experiment says (Chat, Whole,
	// Model, WarmUp) is filled in. nil: a run over the network.
	Simulate *simulate.Options

	// Dial connects in place of the network, and Virtual paces by ordinary
	// timers: for whole runs in a test bubble.
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	Virtual bool
}

// Result is what Run leaves behind.
type Result struct {
	Dir     string
	Summary *analysis.Summary
	// End says why the load ended.
	End loadgen.EndReason
}

// Nothing tells that nothing could be measured: not one request was ok.
func (r *Result) Nothing() bool { return r.Summary.Counts.OK == 0 }

// Manifest says what ran where. It is written when a run begins and again when
// it ends.
type Manifest struct {
	Tool          string            `json:"tool"`
	Version       string            `json:"version"`
	Go            string            `json:"go"`
	OS            string            `json:"os"`
	Arch          string            `json:"arch"`
	CPUs          int               `json:"cpus"`
	FileLimit     int               `json:"file_limit"` // open files this process may have; 0: unknown
	ID            string            `json:"id"`
	Name          string            `json:"name"`
	StartedAt     time.Time         `json:"started_at"` // the run's offset 0, wall clock
	Seed          uint64            `json:"seed"`
	Salt          string            `json:"salt"`
	PlanHash      string            `json:"plan_hash"` // empty until the whole plan was read
	Phases        []plan.Phase      `json:"phases"`
	Closed        bool              `json:"closed_loop"`
	Simulated     bool              `json:"simulated"`
	Synthetic     bool              `json:"synthetic"`
	NotReproduced []string          `json:"not_reproduced"`
	Labels        map[string]string `json:"labels,omitempty"`
	Target        TargetFacts       `json:"target"`
	Simulation    *SimulationFacts  `json:"simulation,omitempty"` // nil: the target was real, or over the network
	// Written when the run ended:
	End        loadgen.EndReason  `json:"end"`
	LoadEnd    time.Duration      `json:"load_end_ns"` // of a load that ended before its plan did; else 0
	Planned    int64              `json:"planned_turns"`
	Generator  analysis.Generator `json:"generator"`
	Prefix     *analysis.Prefix   `json:"prefix"`
	Connection wire.Stats         `json:"connections"`
	Findings   []analysis.Finding `json:"findings"` // beside those that the records show
}

// TargetFacts are what the target said of itself.
type TargetFacts struct {
	URL            string `json:"url"` // without credentials
	API            string `json:"api"`
	Model          string `json:"model"`
	Dialect        string `json:"dialect"`
	EngineVersion  string `json:"engine_version"`
	MaxModelLen    int    `json:"max_model_len"`   // 0: it does not say
	TemplateTokens int    `json:"template_tokens"` // what the chat template adds; -1: unknown
	LaterTokens    int    `json:"later_tokens"`    // and for each later turn; -1: unknown
	CacheSalts     bool   `json:"cache_salts"`     // the engine's cache_salt was seen to work, and is used
}

// Run takes one experiment to a result directory. An error means that nothing
// was sent: a file is missing, a directory is in the way. Whatever the target
// does is in the result.
func Run(ctx context.Context, exp *spec.Experiment, opt Options) (*Result, error) {
	if opt.Lookup == nil {
		opt.Lookup = os.LookupEnv
	}
	if opt.Log == nil {
		opt.Log = io.Discard
	}
	fileLimit := 0
	if opt.Simulate == nil { // on paper nothing is late, and memory matters more than marking
		fileLimit = prepareProcess()
	}

	work, err := workload.New(exp, "")
	if err != nil {
		return nil, err
	}
	defer work.Close()
	var target spec.Resolved
	var conn *wire.Client
	var engines *simulate.Cluster // in the place of both
	if opt.Simulate != nil {
		engines, err = newEngines(exp, work, *opt.Simulate)
	} else if target, err = exp.Target.Resolve(opt.Lookup); err == nil {
		conn, err = newWire(exp, opt)
	}
	if err != nil {
		return nil, err
	}
	if conn != nil {
		defer conn.Close()
	}

	salt := exp.Salt
	if salt == "" {
		salt = newSalt()
	}
	started := time.Now().UTC()
	man := Manifest{
		Tool: "trueload", Version: opt.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		CPUs: runtime.NumCPU(), FileLimit: fileLimit,
		ID: started.Format("20060102-150405") + "-" + salt, Name: exp.Name, StartedAt: started,
		Seed: exp.Seed, Salt: salt, Phases: work.Phases(), Closed: exp.Load.Closed != nil,
		Simulated: opt.Simulated, Labels: exp.Labels,
		Synthetic: len(work.Facts().Synthetic) > 0, NotReproduced: append(work.Facts().Synthetic, work.Facts().NotReproduced...),
	}
	dir := opt.Dir
	if dir == "" {
		dir = freeDir(exp.Name, man.ID)
	}
	if engines != nil {
		man.simulated(exp, engines)
	}
	text, err := exp.Marshal(dir)
	if err != nil {
		return nil, err
	}
	sum, err := newSummarizer(exp, &man, false)
	if err != nil {
		return nil, err
	}
	out, err := store.Create(dir, text, man)
	if err != nil {
		return nil, err
	}

	run := sending{
		exp: exp, opt: opt, work: work, conn: conn, engines: engines, out: out, sum: sum, man: &man,
		prefix: newPrefixMeter(work.Phases()), why: newFailures(work.Phases()), found: &findings{},
	}
	run.found.plan(work.Facts())
	var sent loadgen.Result
	if engines != nil {
		sent = run.simulate(ctx)
	} else if sent, err = run.measure(ctx, target); err != nil {
		return nil, err
	}
	found, why := run.found, run.why
	if sent.LoadEnd > 0 && (sent.End == loadgen.EndInterrupted || sent.End == loadgen.EndCancelled || sent.End == loadgen.EndError) {
		man.LoadEnd = sent.LoadEnd
		sum.Cut(man.LoadEnd)
	}
	man.End, man.Planned = sent.End, sent.Planned
	switch {
	case man.Closed:
		// Which sessions begin is the server's say; the plan itself is not.
		if man.PlanHash, err = work.Hash(); err != nil {
			found.add("plan", analysis.Warning, err.Error(), "")
		}
	case sent.PlanRead:
		man.PlanHash = sent.PlanHash
	}
	switch sent.End {
	case loadgen.EndInterrupted, loadgen.EndCancelled:
		found.add("interrupted", analysis.Warning, "the run was interrupted: this is what was measured before, and what was not due yet is not due", "run it again for figures of the whole window")
	case "": // nothing was sent
		sum.Cut(0)
	}
	if conn != nil {
		conn.Close() // retransmits are counted as connections close
		man.Connection = conn.Stats()
		man.Generator.Retransmits = &man.Connection.Retransmits
	}
	man.Generator.LimitsHit = why.limits
	if n := man.Connection.ClockSteps; n > 0 {
		found.add("clock-stepped", analysis.Warning, fmt.Sprintf("the wall clock was stepped %d times during the run: kernel times near a step are the reader's instead", n), "keep the clock slewed (chrony, not a stepping ntpd) while measuring")
	}
	man.Prefix = run.prefix.figures(man.Target.TemplateTokens, exp.Salt == "")
	man.Findings = append(found.findings, why.findings()...)

	s := summarize(sum, exp, &man)
	err = errors.Join(WriteSummary(out, s), out.WriteJSON(store.ManifestName, man), out.Finish())
	if err != nil {
		// The figures are whole; only their files are not.
		message := strings.ReplaceAll(err.Error(), "\n", "; ")
		s.Findings = append(s.Findings, analysis.Finding{Rule: "result-incomplete", Severity: analysis.Error, Message: message, Remedy: "make room and read what was kept: trueload report " + dir})
		s.Verdict.Valid = false
		s.Verdict.InvalidReasons = append(s.Verdict.InvalidReasons, "the result could not be written: "+message)
		_ = WriteSummary(out, s) // once more, to say so where there is room
	}
	return &Result{Dir: dir, Summary: s, End: sent.End}, nil
}

// freeDir is where a result goes that was given no directory: trueload-NAME, with
// a number behind it from the second on.
func freeDir(name, id string) string {
	if name == "" {
		name = id
	}
	dir := "trueload-" + name
	for n := 2; ; n++ {
		if _, err := os.Stat(dir); err != nil {
			return dir
		}
		dir = fmt.Sprintf("trueload-%s-%d", name, n)
	}
}

// findings collects what the run itself has to say, beside what its records do.
type findings struct {
	reached  bool // the target answered
	findings []analysis.Finding
}

func (f *findings) add(rule string, sev analysis.Severity, message, remedy string) {
	f.findings = append(f.findings, analysis.Finding{Rule: rule, Severity: sev, Message: message, Remedy: remedy})
}

// floored adds how many prompts could not be as short as asked.
func (f *findings) floored(n int64, templateTokens int) {
	if n > 0 {
		f.add("input-floor", analysis.Note, fmt.Sprintf("%d prompts were asked to be shorter than the salt, the prefix and the chat template (%d tokens) allow", n, templateTokens), "raise the shortest input_tokens, or read the input lengths as delivered")
	}
}

// prepared adds that turns waited for their prompts to be made.
func (f *findings) prepared(late, turns int64) {
	if 1000*late > turns {
		f.add("late-prepared", analysis.Warning, fmt.Sprintf("%d prompts of %d were not ready when due, and were sent late", late, turns), "shorter prompts, more cores, or a part of the load from another machine")
	}
}

// plan adds what is known of the plan before it is sent and bears on its result.
func (f *findings) plan(facts *workload.Facts) {
	for _, file := range facts.Files {
		for _, d := range file.Dropped {
			message := fmt.Sprintf("%s: %d of %d rows take no part: %s", file.Name, d.Rows, file.Rows, d.Reason)
			if d.First != "" {
				message += " (first: " + d.First + ")"
			}
			f.add("rows-dropped", analysis.Note, message, "")
		}
	}
	for _, note := range facts.Notes {
		f.add("workload", analysis.Note, note, "")
	}
}

// sending is a plan on its way into a result.
type sending struct {
	exp     *spec.Experiment
	opt     Options
	work    *workload.Workload
	conn    *wire.Client
	client  *protocol.Client
	zero    time.Duration     // the clock's reading at the run's start
	engines *simulate.Cluster // in the place of conn, client and zero
	out     *store.Writer
	sum     *analysis.Summarizer
	man     *Manifest
	prefix  *prefixMeter
	why     *failures
	found   *findings
}

// measure probes the target and sends it the plan. An error means that nothing
// was sent.
func (in *sending) measure(ctx context.Context, target spec.Resolved) (sent loadgen.Result, err error) {
	exp, work, conn, out, man, found := in.exp, in.work, in.conn, in.out, in.man, in.found
	// The probe learns what the requests must look like; nothing of it is measured.
	cfg := requestConfig(exp, target, man.Salt)
	unprobed := *found
	probing, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-in.opt.Stop:
			cancel()
		case <-probing.Done():
		}
	}()
	in.say("probing %s", bareURL(target.URL))
	found.probe(probing, &cfg, exp, conn, man)
	if probing.Err() != nil {
		*found = unprobed
		sent.End = loadgen.EndInterrupted
	}
	cancel()
	for _, f := range found.findings {
		in.say("%s: %s", f.Severity, f.Message)
		if f.Severity == analysis.Error && f.Remedy != "" {
			in.say("  hint: %s", f.Remedy)
		}
	}
	defer readHost().since(&man.Generator)
	if !found.reached {
		return sent, nil
	}
	render := workload.RenderOptions{Salt: man.Salt, FirstTokens: max(man.Target.TemplateTokens, 0), LaterTokens: max(man.Target.LaterTokens, 0)}
	if man.Target.CacheSalts {
		render.SaltTokens = -1 // the engine's own field does it
	}
	renderer := work.Renderer(render)
	if man.Target.CacheSalts {
		cfg.CacheSalt = renderer.CacheSalt
	}
	cfg.Zero = conn.Clock().Now() + loadgen.LeadIn
	man.StartedAt = conn.Clock().Start().Add(cfg.Zero).UTC()
	if exp.Target.Tokenizer == "server" {
		counter, err := protocol.New(cfg, conn, nil)
		if err != nil {
			return sent, err
		}
		cfg.CountTokens = func(text string) (int, error) { return counter.CountTokens(ctx, text) }
	}
	client, err := protocol.New(cfg, conn, renderer)
	if err != nil {
		return sent, err
	}
	// Now the manifest knows the target and the start: a run that is killed
	// keeps them.
	if err := out.WriteJSON(store.ManifestName, *man); err != nil {
		found.add("result-incomplete", analysis.Error, err.Error(), "make room on the disk")
	}
	in.say("%s", announce(exp, work, man, out.Dir()))
	in.client, in.zero = client, cfg.Zero
	if sent, err = in.send(ctx); err != nil {
		found.add("run-error", analysis.Error, err.Error(), "what was measured before it is kept")
	}
	found.floored(renderer.Floored(), man.Target.TemplateTokens)
	found.prepared(sent.LatePrepared, sent.Planned)
	return sent, nil
}

func (in *sending) say(format string, args ...any) { fmt.Fprintf(in.opt.Log, format+"\n", args...) }

// send sends the plan and keeps its records, until the plan's end, an
// interrupt, or a result directory that takes no more.
func (in *sending) send(ctx context.Context) (loadgen.Result, error) {
	stop := make(chan struct{})
	done := make(chan struct{})
	var progress loadgen.Progress
	now := func() time.Duration { return in.conn.Clock().Now() - in.zero }
	if in.engines != nil {
		now = func() time.Duration { return progress.Snapshot().At }
	}
	var open *openSessions
	if in.conn != nil && in.exp.Target.Connections == string(protocol.PerSession) {
		open = &openSessions{left: map[int64]int{}}
	}
	var stopped atomic.Int64 // when, so that what ends after it is known to
	var wg sync.WaitGroup
	wg.Go(func() { show(in.opt.Log, in.opt.Terminal, now, in.work.Phases(), &progress, done) })
	wg.Go(func() {
		defer close(stop)
		defer func() { stopped.Store(int64(now())) }()
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-in.opt.Stop:
				return
			case <-tick.C:
				in.out.Beat(now())
				if in.out.Err() != nil {
					return
				}
			}
		}
	})
	opt := loadgen.Options{
		Phases:      in.work.Phases(),
		MaxInFlight: in.exp.Load.MaxInFlight.N,
		Shed:        in.exp.Load.MaxInFlight.Policy == "shed",
		Timeout:     in.exp.Target.Timeout,
		Drain:       in.exp.Load.Drain,
		Now:         now,
		Progress:    &progress,
		Stop:        stop,
		Record: func(r *record.Record) {
			if open != nil && open.ended(r.ID.Session) {
				in.conn.EndSession(protocol.SessionKey(r.ID.Session))
			}
			if at := stopped.Load(); at > 0 {
				in.sum.Cut(time.Duration(at))
			}
			in.sum.Add(r)
			in.why.add(r)
			in.out.Record(r)
		},
	}
	if in.opt.Virtual {
		opt.Pacer = loadgen.NewVirtualPacer(now)
	}
	if c := in.exp.Load.Closed; c != nil {
		opt.Clients = c.Clients
	}
	var res loadgen.Result
	var err error
	if src := (&noted{in.work.Source(), in.out, in.prefix, open}); in.engines != nil {
		res, err = loadgen.Simulate(ctx, src, in.engines, opt)
	} else {
		prepare := loadgen.Prepare(in.client.Prepare)
		if opt.Clients > 0 {
			prepare = begun(prepare, in.out)
		}
		res, err = loadgen.Run(ctx, src, prepare, opt)
	}
	close(done)
	wg.Wait()
	if werr := in.out.Err(); werr != nil {
		res.End = loadgen.EndError
		err = errors.Join(err, fmt.Errorf("the run was stopped: %w", werr))
	}
	return res, err
}

// begun notes when the sessions of a closed loop begin, which no plan says, so
// that a run that is killed can tell what was in flight.
func begun(prepare loadgen.Prepare, out *store.Writer) loadgen.Prepare {
	return func(s *plan.Session, turn int, replies []string) (func(context.Context, *record.Record) string, error) {
		send, err := prepare(s, turn, replies)
		if err != nil || turn > 0 {
			return send, err
		}
		return func(ctx context.Context, rec *record.Record) string {
			out.Begun(s.Seq, rec.Scheduled)
			return send(ctx, rec)
		}, nil
	}
}

// noted is a source whose sessions are noted in the result as they are taken.
type noted struct {
	plan.Source
	out    *store.Writer
	prefix *prefixMeter
	open   *openSessions // nil: connections are not kept by session
}

// openSessions counts the turns of each session that have not ended, since in a
// strict replay the last one to be sent is not always the last to end.
type openSessions struct {
	mu   sync.Mutex
	left map[int64]int
}

func (o *openSessions) begin(s *plan.Session) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.left[s.Seq] = len(s.Turns)
}

// ended notes the end of one turn and tells whether it was the session's last.
func (o *openSessions) ended(seq int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.left[seq]--
	if o.left[seq] > 0 {
		return false
	}
	delete(o.left, seq)
	return true
}

func (n *noted) Next() (*plan.Session, error) {
	s, err := n.Source.Next()
	if err == nil {
		n.prefix.add(s)
		n.out.Session(s)
		if n.open != nil {
			n.open.begin(s)
		}
	}
	return s, err
}

// newWire returns the client that all requests go through.
func newWire(exp *spec.Experiment, opt Options) (*wire.Client, error) {
	tlsConfig, err := tlsConfig(exp)
	if err != nil {
		return nil, err
	}
	return wire.NewClient(wire.Options{
		Dial: opt.Dial, TLS: tlsConfig, Insecure: exp.Target.TLS.Insecure,
		HTTP1: exp.Target.HTTP == "h1", H2C: exp.Target.HTTP == "h2c",
	}), nil
}

func tlsConfig(exp *spec.Experiment) (*tls.Config, error) {
	name := exp.Target.TLS.CA
	if name == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(exp.Path(name))
	if err != nil {
		return nil, fmt.Errorf("target.tls.ca: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("target.tls.ca: %s holds no PEM certificate", name)
	}
	return &tls.Config{RootCAs: pool}, nil
}

// requestConfig says what requests look like before the target was probed.
func requestConfig(exp *spec.Experiment, target spec.Resolved, salt string) protocol.Config {
	header := http.Header{}
	for name, value := range target.Headers {
		header.Set(name, value)
	}
	t := &exp.Target
	cfg := protocol.Config{
		BaseURL: target.URL, API: protocol.API(t.API), Model: t.Model, Header: header, Secrets: target.Secrets, Body: t.Body,
		Whole: !t.Stream, FreeLength: t.ForceLength == "off", ForceLength: t.ForceLength == "ignore_eos",
		Connections: protocol.Connections(t.Connections), Timeout: t.Timeout, Salt: salt,
	}
	for _, c := range exp.Workload.Classes {
		cfg.PromptIDs = cfg.PromptIDs || c.Text.Random == "token_ids"
	}
	if tr := exp.Workload.Trace; tr != nil {
		cfg.PromptIDs = tr.Text.Random == "token_ids"
	}
	return cfg
}

// newSalt is eight hex digits that no other run has.
func newSalt() string {
	var b [4]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// announce says what is about to be sent.
func announce(exp *spec.Experiment, work *workload.Workload, man *Manifest, dir string) string {
	f := work.Facts()
	end := time.Duration(0)
	for _, p := range work.Phases() {
		if p.Name != workload.TailName {
			end = max(end, p.End)
		}
	}
	what := man.Target.URL
	if f := man.Simulation; f != nil {
		what = fmt.Sprintf("%d simulated %s", f.Replicas, f.Profile)
	} else if man.Target.Model != "" {
		what = man.Target.Model + " at " + what
	}
	if f.Sessions < 0 {
		length := unit.Duration(end)
		if end == plan.Endless {
			length = unit.Number(float64(exp.Load.Phases[0].Requests)) + " requests"
		}
		return fmt.Sprintf("closed loop of %d clients against %s for %s, into %s", exp.Load.Closed.Clients, what, length, dir)
	}
	return fmt.Sprintf("about %s sessions (%s turns) to measure against %s, %s in all, into %s", unit.Number(f.Sessions), unit.Number(f.Turns), what, unit.Duration(end), dir)
}

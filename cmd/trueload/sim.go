package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/trueload/trueload/internal/experiment"
	"github.com/trueload/trueload/internal/sim"
	"github.com/trueload/trueload/internal/sim/httpapi"
	"github.com/trueload/trueload/internal/unit"
)

type simCmd struct {
	Addr          string        `help:"Where to listen." default:"127.0.0.1:8000" placeholder:"HOST:PORT"`
	Replicas      int           `help:"How many engines stand behind the router." default:"1"`
	ReplicaAddrs  bool          `help:"Give each replica an address of its own as well, on the ports after the router's."`
	Profile       string        `help:"The GPU and model to behave like, by name or as a JSON file of your own; list shows the names." default:"h100-llama3-8b" placeholder:"NAME"`
	Policy        string        `help:"The engine whose scheduler and cache are followed: vllm, sglang or llama.cpp." default:"vllm" placeholder:"NAME"`
	Model         string        `help:"The served model's name." default:"sim"`
	Router        string        `help:"How requests are spread over the replicas: round-robin, least-loaded, prefix-aware or session-pinned." enum:"round-robin,least-loaded,prefix-aware,session-pinned" default:"round-robin"`
	SessionHeader string        `help:"The header that session-pinned goes by; without it, the first user message." default:"X-Session-Id" placeholder:"NAME"`
	MaxSeqs       int           `help:"Requests in one batch; 0: the profile's." placeholder:"N"`
	MaxTokens     int           `name:"max-batched-tokens" help:"Tokens in one step; 0: the profile's." placeholder:"N"`
	Blocks        int           `help:"KV blocks of 16 tokens; 0: the profile's." placeholder:"N"`
	NoPrefix      bool          `name:"no-prefix-cache" help:"Switch prefix caching off."`
	Priority      bool          `help:"Serve by the requests' priority instead of first come first served."`
	Speculate     int           `help:"Draft tokens per step; 0: none." placeholder:"N"`
	Accept        []float64     `help:"With --speculate: the probability that a draft is accepted, by position; the last stands for all that follow." default:"0.8,0.6,0.4" placeholder:"P,..."`
	Interval      int           `name:"stream-interval" help:"Tokens that leave together; 0: 1." placeholder:"N"`
	LoRA          []string      `name:"lora" help:"A LoRA adapter, asked for as a model. Repeatable." placeholder:"NAME"`
	MaxLoRAs      int           `name:"max-loras" help:"Adapters in one batch; 0: 1." placeholder:"N"`
	LoRALoad      time.Duration `name:"lora-load" help:"What it costs to bring an adapter to the GPU." placeholder:"1s"`
	Cold          bool          `help:"Begin cold: the first steps cost what real engines take to capture graphs and load kernels."`
	MaxQueue      int           `help:"Waiting requests per replica before one is turned away; 0: queue without bound." placeholder:"N"`
	Overload      string        `help:"How one is turned away: 429, or in-band-503 (SGLang: an error inside a 200)." enum:"429,in-band-503" default:"429"`
	RetryAfter    time.Duration `help:"Sent with a 429; 0: not sent." placeholder:"5s"`
	Fault         []string      `help:"Something to go wrong, as in freeze,at=30s,for=5s or slow,replica=1,factor=3. Kinds: freeze, slow, drop, error, restart, stall; keys: at, for, replica, factor, share, after, delay. Repeatable." sep:"none" placeholder:"KIND[,KEY=VALUE...]"`
	Metrics       string        `help:"Whose names /metrics has: vllm, sglang or llama.cpp. Default: the policy's." enum:",vllm,sglang,llama.cpp" default:"" placeholder:"NAME"`
	Quirk         []string      `help:"A flaw of past versions: recount (prefix lookups counted at every retry), pid-labels (copies of a gauge), silent-reset (a refused reset looks done). Repeatable." enum:"recount,pid-labels,silent-reset" placeholder:"NAME"`
	HideCached    bool          `name:"hide-cached-tokens" help:"Leave cached tokens out of usage, as vLLM does by default."`
	MeanOutput    int           `help:"Mean length of answers that may end by themselves; 0: 200." placeholder:"TOKENS"`
	Truth         string        `help:"Write the true times of every request to this file, as JSON lines." placeholder:"FILE"`
	Jitter        float64       `help:"Coefficient of variation of step times." default:"0.03"`
	Seed          uint64        `help:"Draws jitter, answers and faults." default:"1"`
	Paced         bool          `help:"No engine: send every token at an exact time and stamp it. The reference that clients are measured against."`
	TTFT          time.Duration `name:"ttft" help:"With --paced: from the request to the first token." default:"100ms"`
	Gap           time.Duration `help:"With --paced: from token to token." default:"20ms"`
}

func (simCmd) Help() string {
	return "Examples:\n\n  trueload sim serve --replicas 4 --replica-addrs --router prefix-aware\n  trueload sim serve --profile rtx4090-llama3.1-8b --addr 127.0.0.1:9000\n  trueload sim serve --fault freeze,at=30s,for=5s --fault error,share=0.01\n  trueload sim serve --paced --ttft 100ms --gap 20ms\n\nThe engine batches continuously: chunked prefill, a paged KV cache with prefix\nreuse, preemption, and step times from a profile. It is an OpenAI-compatible\nserver with vLLM's stream and metric names. While it runs, faults are ordered at\n/sim/faults."
}

func (cmd simCmd) Run(c *console) error {
	experiment.CollectSeldom()
	if cmd.Profile == "list" {
		for _, p := range sim.Profiles() {
			fmt.Fprintf(c.out, "%-24s %s, %s (%s: %s)\n", p.Name, p.GPU, p.Model, p.Basis, p.Source)
		}
		return nil
	}
	if cmd.Replicas < 1 {
		return errors.New("--replicas: must be at least 1")
	}
	switch {
	case cmd.Paced && (cmd.Replicas > 1 || cmd.ReplicaAddrs || len(cmd.Fault) > 0 || cmd.Truth != ""):
		return errors.New("--paced: there is no engine, hence no --replicas, --replica-addrs, --fault and --truth")
	case cmd.Overload == "in-band-503" && cmd.MaxQueue == 0:
		return errors.New("--overload: needs --max-queue, without which the queue has no bound")
	}
	ctx, stop := signal.NotifyContext(c.ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	ln, err := net.Listen("tcp", cmd.Addr)
	if err != nil {
		return fmt.Errorf("%w (another --addr?)", err)
	}
	if cmd.Paced {
		return cmd.paced(ctx, c, ln)
	}
	lns := []net.Listener{ln}
	shut := func() {
		for _, ln := range lns {
			ln.Close()
		}
	}
	if cmd.ReplicaAddrs {
		for i := range cmd.Replicas {
			ln, err := listenAfter(ln.Addr(), cmd.Addr, i+1)
			if err != nil {
				shut()
				return fmt.Errorf("replica %d: %w (another --addr?)", i, err)
			}
			lns = append(lns, ln)
		}
	}
	o, err := cmd.options()
	if err != nil {
		shut()
		return err
	}
	var truth *httpapi.TruthLog
	if cmd.Truth != "" {
		f, err := os.Create(cmd.Truth)
		if err != nil {
			shut()
			return fmt.Errorf("--truth: %w", err)
		}
		defer f.Close()
		truth = httpapi.NewTruthLog(f)
		o.Truth = truth.Add
	}
	srv, err := httpapi.New(o)
	if err != nil {
		shut()
		return err
	}
	p := srv.Options().Engine.Profile
	fmt.Fprintf(c.err, "simulated engine %s (%s), %s, at http://%s (Ctrl-C ends it)\n", p.Name, p.Basis, plural(cmd.Replicas, "replica"), ln.Addr())
	for i, ln := range lns[1:] {
		fmt.Fprintf(c.err, "replica %d alone at http://%s\n", i, ln.Addr())
	}
	err = serve(ctx, srv, lns...)
	if truth != nil {
		err = errors.Join(err, truth.Close())
	}
	return err
}

// listenAfter listens n ports after the router's, which was asked for as addr;
// on any free one, where the router's was left to the system.
func listenAfter(router net.Addr, addr string, n int) (net.Listener, error) {
	host, asked, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port := 0
	if tcp, ok := router.(*net.TCPAddr); ok && asked != "0" {
		port = tcp.Port + n
	}
	return net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
}

// serve answers as the router on the first listener, and as one replica on each
// of the others, until ctx ends or one of them fails.
func serve(ctx context.Context, srv *httpapi.Server, lns ...net.Listener) error {
	ended := context.AfterFunc(ctx, func() { srv.Close() })
	defer ended()
	errs := make(chan error, len(lns))
	for i, ln := range lns {
		go func() {
			if i == 0 {
				errs <- srv.Serve(ln)
			} else {
				errs <- srv.ServeReplica(i-1, ln)
			}
		}()
	}
	var err error
	for range lns {
		if e := <-errs; e != nil {
			err = errors.Join(err, e)
			srv.Close()
		}
	}
	return errors.Join(err, srv.Close())
}

// What every simulated model is like, served or only computed: its chat template
// puts so many tokens first, and its step times vary by 3 %.
const (
	simTemplate = 10
	simJitter   = 0.03
)

// draftShare is that of an EAGLE head on an 8B model.
const draftShare = 0.1

func (cmd simCmd) server() (*httpapi.Server, error) {
	o, err := cmd.options()
	if err != nil {
		return nil, err
	}
	return httpapi.New(o)
}

var (
	routers = map[string]httpapi.Router{
		"": httpapi.RoundRobin, "round-robin": httpapi.RoundRobin, "least-loaded": httpapi.LeastLoaded,
		"prefix-aware": httpapi.PrefixAware, "session-pinned": httpapi.SessionPinned,
	}
	overloads = map[string]httpapi.Overload{"429": httpapi.Reject429, "in-band-503": httpapi.InBand503}
	dialects  = map[string]httpapi.Dialect{"vllm": httpapi.VLLM, "sglang": httpapi.SGLang, "llama.cpp": httpapi.LlamaCPP}
)

// profileOf is a built-in profile, or one from a file, whose name ends in .json.
func profileOf(name string) (sim.Profile, error) {
	if !strings.HasSuffix(name, ".json") {
		return sim.ProfileByName(name)
	}
	f, err := os.Open(name)
	if err != nil {
		return sim.Profile{}, err
	}
	defer f.Close()
	return sim.ReadProfile(f, name)
}

func (cmd simCmd) options() (httpapi.Options, error) {
	profile, err := profileOf(cmd.Profile)
	if err != nil {
		return httpapi.Options{}, fmt.Errorf("--profile: %w", err)
	}
	engine := sim.Config{
		Policy: sim.Policy(cmd.Policy), Profile: profile, MaxSeqs: cmd.MaxSeqs, MaxBatchedTokens: cmd.MaxTokens, Blocks: cmd.Blocks,
		NoPrefixCache: cmd.NoPrefix, RecountBlocked: slices.Contains(cmd.Quirk, "recount"), Jitter: cmd.Jitter,
		Priority: cmd.Priority, OutputInterval: cmd.Interval, MaxLoRAs: cmd.MaxLoRAs, LoRALoad: cmd.LoRALoad,
	}
	if cmd.Speculate != 0 {
		engine.Speculation = sim.Speculation{Tokens: cmd.Speculate, Accept: cmd.Accept, Share: draftShare}
	}
	if cmd.Cold {
		engine.Cold = sim.TypicalColdStart()
	}
	o := httpapi.Options{
		Engine: engine, Adapters: cmd.LoRA,
		Replicas: cmd.Replicas, Router: routers[cmd.Router], SessionHeader: cmd.SessionHeader,
		MaxQueue: cmd.MaxQueue, Overload: overloads[cmd.Overload], RetryAfter: cmd.RetryAfter,
		HideCachedTokens: cmd.HideCached, MeanOutput: cmd.MeanOutput, Metrics: dialects[cmp.Or(cmd.Metrics, cmd.Policy)], SilentReset: slices.Contains(cmd.Quirk, "silent-reset"),
		Model: cmd.Model, TemplateTokens: simTemplate, Seed: cmd.Seed,
	}
	if slices.Contains(cmd.Quirk, "pid-labels") {
		o.APIServers = 2
	}
	for _, s := range cmd.Fault {
		f, err := httpapi.ParseFault(s)
		if err != nil {
			return o, fmt.Errorf("--fault: %w", err)
		}
		o.Faults = append(o.Faults, f)
	}
	return o, nil
}

func (cmd simCmd) paced(ctx context.Context, c *console, ln net.Listener) error {
	p := &httpapi.Paced{TTFT: cmd.TTFT, Gap: cmd.Gap, Model: cmd.Model}
	ended := context.AfterFunc(ctx, func() { p.Close() })
	defer ended()
	fmt.Fprintf(c.err, "truth server: first token after %s, then one every %s, at http://%s (Ctrl-C ends it)\n", unit.Duration(cmd.TTFT), unit.Duration(cmd.Gap), ln.Addr())
	err := p.Serve(ln)
	r := p.Close()
	fmt.Fprintf(c.out, "%d requests, %d tokens; own lateness p50 %s, p99 %s, p99.9 %s, max %s; %d merged\n",
		r.Requests, r.Tokens, unit.Duration(r.LateP50), unit.Duration(r.LateP99), unit.Duration(r.LateP999), unit.Duration(r.LateMax), r.Merged)
	return err
}

// plural writes 1 replica, 2 replicas.
func plural(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", n, thing))
}

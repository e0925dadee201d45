package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/trueload/trueload/internal/sim"
	"github.com/trueload/trueload/internal/sim/httpapi"
	"github.com/trueload/trueload/internal/unit"
)

type simCmd struct {
	Addr       string        `help:"Where to listen." default:"127.0.0.1:8000" placeholder:"HOST:PORT"`
	Replicas   int           `help:"How many engines stand behind the router." default:"1"`
	Profile    string        `help:"The GPU and model to behave like; list shows them all." default:"h100-llama3-8b" placeholder:"NAME"`
	Model      string        `help:"The served model's name." default:"sim"`
	Router     string        `help:"How requests are spread over the replicas: round-robin or least-loaded." enum:"round-robin,least-loaded" default:"round-robin"`
	MaxSeqs    int           `help:"Requests in one batch; 0: the profile's." placeholder:"N"`
	MaxTokens  int           `name:"max-batched-tokens" help:"Tokens in one step; 0: the profile's." placeholder:"N"`
	Blocks     int           `help:"KV blocks of 16 tokens; 0: the profile's." placeholder:"N"`
	NoPrefix   bool          `name:"no-prefix-cache" help:"Switch prefix caching off."`
	MaxQueue   int           `help:"Waiting requests per replica before 429; 0: queue without bound." placeholder:"N"`
	RetryAfter time.Duration `help:"Sent with a 429; 0: not sent." placeholder:"5s"`
	Jitter     float64       `help:"Coefficient of variation of step times." default:"0.03"`
	Seed       uint64        `help:"Draws jitter and answers." default:"1"`
	Paced      bool          `help:"No engine: send every token at an exact time and stamp it. The reference that clients are measured against."`
	TTFT       time.Duration `name:"ttft" help:"With --paced: from the request to the first token." default:"100ms"`
	Gap        time.Duration `help:"With --paced: from token to token." default:"20ms"`
}

func (simCmd) Help() string {
	return "Examples:\n\n  trueload sim --replicas 4\n  trueload sim --profile rtx4090-llama3.1-8b --addr 127.0.0.1:9000\n  trueload sim --paced --ttft 100ms --gap 20ms\n\nThe engine batches continuously: chunked prefill, a paged KV cache with prefix\nreuse, preemption, and step times from a profile. It is an OpenAI-compatible\nserver with vLLM's stream and metric names."
}

func (cmd simCmd) Run(c *console) error {
	if cmd.Profile == "list" {
		for _, p := range sim.Profiles() {
			fmt.Fprintf(c.out, "%-24s %s, %s (%s: %s)\n", p.Name, p.GPU, p.Model, p.Basis, p.Source)
		}
		return nil
	}
	if cmd.Replicas < 1 {
		return errors.New("--replicas: must be at least 1")
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
	srv, err := cmd.server()
	if err != nil {
		ln.Close()
		return err
	}
	p := srv.Options().Engine.Profile
	if p.Name == "" {
		p = sim.DefaultProfile()
	}
	fmt.Fprintf(c.err, "simulated engine %s (%s), %s, at http://%s (Ctrl-C ends it)\n", p.Name, p.Basis, plural(cmd.Replicas, "replica"), ln.Addr())
	return serve(ctx, srv, ln)
}

// serve answers on ln until ctx ends.
func serve(ctx context.Context, srv *httpapi.Server, ln net.Listener) error {
	ended := context.AfterFunc(ctx, func() { srv.Close() })
	defer ended()
	return srv.Serve(ln)
}

// What every simulated model is like, served or only computed: its chat template
// puts so many tokens first, and its step times vary by 3 %.
const (
	simTemplate = 10
	simJitter   = 0.03
)

func (cmd simCmd) server() (*httpapi.Server, error) {
	profile, err := sim.ProfileByName(cmd.Profile)
	if err != nil {
		return nil, err
	}
	router := httpapi.RoundRobin
	if cmd.Router == "least-loaded" {
		router = httpapi.LeastLoaded
	}
	return httpapi.New(httpapi.Options{
		Engine: sim.Config{
			Profile: profile, MaxSeqs: cmd.MaxSeqs, MaxBatchedTokens: cmd.MaxTokens, Blocks: cmd.Blocks,
			NoPrefixCache: cmd.NoPrefix, Jitter: cmd.Jitter,
		},
		Replicas: cmd.Replicas, Router: router, MaxQueue: cmd.MaxQueue, RetryAfter: cmd.RetryAfter,
		Model: cmd.Model, TemplateTokens: simTemplate, Seed: cmd.Seed,
	})
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

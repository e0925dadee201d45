package sim

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Published measurements of real engines beside what a profile says. Two terms
// are fitted to every other point, the points between are held out, and what the
// model does not explain is named: these tests are how far a profile may be
// believed, not that it is true.

// calibrate fits a step's host time and the time per decoding sequence, which no
// profile has measured, to the values want[i] of the points 0, 2, 4, …, by Gauss
// and Newton on the logarithms. at gives point i as p has it.
func calibrate(p Profile, want []float64, at func(p Profile, i int) float64) Profile {
	with := func(host, seq float64) Profile {
		q := p
		q.Host, q.PerDecode = host, seq
		return q
	}
	for range 4 {
		const dh, ds = 0.1 * ms, 10 * us
		var a, b, d, u, v float64 // of the normal equations
		for i := 0; i < len(want); i += 2 {
			here := math.Log(at(p, i))
			gh := (math.Log(at(with(p.Host+dh, p.PerDecode), i)) - here) / dh
			gs := (math.Log(at(with(p.Host, p.PerDecode+ds), i)) - here) / ds
			miss := math.Log(want[i]) - here
			a, b, d, u, v = a+gh*gh, b+gh*gs, d+gs*gs, u+gh*miss, v+gs*miss
		}
		det := a*d - b*b
		p = with(max(0, p.Host+(u*d-v*b)/det), max(0, p.PerDecode+(v*a-u*b)/det))
	}
	return p
}

// judge fails where a point held out is off by more than 15 %.
func judge(t *testing.T, errs []float64) {
	t.Helper()
	for i, e := range errs {
		errs[i] = math.Abs(e)
	}
	slices.Sort(errs)
	median := (errs[(len(errs)-1)/2] + errs[len(errs)/2]) / 2
	t.Logf("held out: median error %.1f %%, largest %.1f %%", 100*median, 100*errs[len(errs)-1])
	if worst := errs[len(errs)-1]; worst > 0.15 {
		t.Errorf("held-out points are off by up to %.0f %%", 100*worst)
	}
}

// A published measurement of a real engine: Mistral-7B-Instruct-v0.3 by vLLM on
// one RTX 4090, 300 prompts of 256 tokens, at most 128 out, by the largest
// number in flight (M. Rahman, mushfiqrahman.dev, post 1668, part 1; the version
// of vLLM is not told). Its layers are those of Llama-3-8B, its output head a
// quarter as large (32,768 words for 128,256). The table's own throughputs give
// 100 tokens out on average; their distribution is not told, and taken to be
// 128 for 55 % and anything below for the rest.
var published4090 = []struct {
	inFlight         int
	requests         float64 // per second
	meanTTFT, medTTF float64 // ms
}{{4, 2.09, 63, 53}, {8, 3.78, 79, 55}, {16, 6.44, 155, 97}, {32, 9.73, 362, 277}, {48, 11.87, 667, 840}}

// As the profile stands it promises 7 to 30 % more requests per second, the more
// the more are in flight: that engine has costs per sequence which the profile
// of a newer vLLM does not. With the step's host time and the time per decoding
// sequence fitted to every other point, the points between must come out within
// 15 %. Time to first token is not fitted and does not come out: the real one is
// two to four times longer, and its mean lies below its median at 48 in flight,
// so requests waited for something that is no step of the GPU (tokenising, the
// server's own loop, a cap on prefill), which is not modelled.
func TestPublishedMistral7BOnRTX4090(t *testing.T) {
	base, err := ProfileByName("rtx4090-llama3.1-8b")
	if err != nil {
		t.Fatal(err)
	}
	base.HeadBase /= 4
	run := func(p Profile, inFlight int) (rate, meanTTFT float64) {
		rng := rand.New(rand.NewPCG(1, 2))
		rs, end := closed(t, Config{Profile: p}, inFlight, 300, func(i int) *Request {
			out := 128
			if rng.Float64() < 0.45 {
				out = 1 + rng.IntN(128)
			}
			return &Request{Prompt: text(i, 0, 256), MaxTokens: out}
		})
		for _, r := range rs {
			meanTTFT += ttft(r).Seconds() / 300
		}
		return 300 / end.Seconds(), meanTTFT
	}
	var want []float64
	for _, m := range published4090 {
		want = append(want, m.requests)
	}
	fitted := calibrate(base, want, func(p Profile, i int) float64 {
		rate, _ := run(p, published4090[i].inFlight)
		return rate
	})
	t.Logf("fitted: host %.2f ms a step, %.0f µs a decoding sequence (profile: %.2f ms, %.1f µs)", fitted.Host*1e3, fitted.PerDecode*1e6, base.Host*1e3, base.PerDecode*1e6)
	var errs []float64
	for i, m := range published4090 {
		before, _ := run(base, m.inFlight)
		after, first := run(fitted, m.inFlight)
		e := after/m.requests - 1
		held := ""
		if i%2 == 1 {
			held = ", held out"
			errs = append(errs, e)
		}
		t.Logf("%d in flight: %.2f requests/s measured, %.2f as it stands (%+.0f %%), %.2f fitted (%+.1f %%%s); mean TTFT %.0f ms measured, %.0f ms", m.inFlight, m.requests, before, 100*(before/m.requests-1), after, 100*e, held, m.meanTTFT, first*1e3)
	}
	judge(t, errs)
}

// A second one: Llama-3-8B-Instruct in bf16 by vLLM 0.20.1 on one A100-SXM4-80GB
// (FreedomIntelligence/AccelMark 5797fc42, results/verified/nvidia_a100_sxm4_
// 80gbx1_suite_A_nvidia_vllm020_0f6c56e4_8f83bfab of 2026-05-18, and for 10 and
// 50 requests/s, of Llama-3.1-8B-Instruct, …suite_C…_ffd81462/bf16 of the same
// day; at 5/s the two differ by 1 %). One prompt after the other, 8 in flight,
// 100 at once, and Poisson arrivals; the engine is called in its own process,
// without HTTP. Prompts are the first 150, 300 or 100 of the source's
// sharegpt_standard_v1, played again in each run, answers greedy and at most 512
// tokens.
//
// From the source's own figures: prompts by the quantiles of the file's
// input_tokens, and 10 tokens of template (255.6 a prompt were counted in the
// offline run, where the file has 245.4); 348 tokens out on average. Their
// distribution is not told, and taken to be 512 for 36 % and anything below for
// the rest. MaxSeqs is 512 in the offline run and was left to vLLM otherwise,
// whose default for an engine made in that way is 128; the waits at 25/s and
// above agree.
var publishedA100 = []struct {
	load     string
	inFlight int
	rate     float64 // requests per second; 0: inFlight always
	// The measured: median time per output token, or output tokens per second.
	tpot, tokens float64 // ms, 1/s
	medTTFT      float64 // ms; 0: not told
	elapsed      float64 // s for 300 requests, where there is a rate
}{
	{load: "one at a time", inFlight: 1, tpot: 10.77, medTTFT: 27.78},
	{load: "8 in flight", inFlight: 8, tokens: 712.3, medTTFT: 34.5},
	{load: "5/s", rate: 5, tpot: 13.21, medTTFT: 40.2, elapsed: 69.1},
	{load: "10/s", rate: 10, tpot: 17.62, medTTFT: 52.06, elapsed: 36.5},
	{load: "100 at once", inFlight: 100, tokens: 3908.22},
	{load: "25/s", rate: 25, tpot: 22.28, medTTFT: 75.24, elapsed: 25.0},
	{load: "50/s", rate: 50, tpot: 22.37, medTTFT: 891.06, elapsed: 23.9},
	{load: "100/s", rate: 100, tpot: 22.18, medTTFT: 1710.17, elapsed: 22.3},
}

// As the profile stands a token takes up to 21 % too little time from 10/s on.
// Fitted, all points come out within 11 %; those at 25/s and above, all with 128
// running, are nearly one point. What is left has a shape: from 23 to 60 in flight
// (5/s to 10/s) the real step grows by a third, the model's by a fifth. Median time
// to first token is not fitted and comes out at a third to a half of the measured
// below saturation. At 8 in flight it was three steps, with a p99 hardly above,
// where the model has one. An engine that plans a step while another runs would
// look like that; it is not modelled.
func TestPublishedLlama3OnA100(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	base, err := ProfileByName("a100-llama3-8b")
	if err != nil {
		t.Fatal(err)
	}
	// The prompts and answers, the same ones in every run.
	rng := rand.New(rand.NewPCG(3, 4))
	quantiles := []float64{64, 102, 203, 360, 592}
	var in, out [300]int
	for i := range in {
		q := 4 * rng.Float64()
		j := int(q)
		in[i] = 10 + int(quantiles[j]+(q-float64(j))*(quantiles[j+1]-quantiles[j]))
		if out[i] = 512; rng.Float64() > 0.36 {
			out[i] = 1 + rng.IntN(512)
		}
	}
	shape := func(i int) *Request {
		i %= len(in)
		return &Request{Prompt: text(i, 0, in[i]), MaxTokens: out[i]}
	}
	type result struct{ tpot, tokens, ttft, elapsed float64 }
	run := func(p Profile, k int) result {
		m := publishedA100[k]
		cfg := Config{Profile: p, MaxSeqs: 128}
		const runs = 3
		var counted []*Request
		var res result
		switch {
		case m.rate > 0:
			// Runs follow each other on one engine, from 5/s on: the prompts
			// are new to the cache in the very first run.
			e := mustNew(t, cfg)
			var now time.Duration
			rng := rand.New(rand.NewPCG(5, uint64(m.rate)))
			var elapsed []float64
			first := 1 // the prompts' first round is not counted
			if m.rate == 5 {
				first = 0
			}
			for r := range first + runs {
				rs := every(len(in), time.Duration(float64(time.Second)/m.rate), rng, shape)
				for _, q := range rs {
					q.Tag = q.Tag.(time.Duration) + now
				}
				end, err := Run(e, source(rs), nil)
				if err != nil {
					t.Fatal(err)
				}
				if r >= first {
					counted = append(counted, rs...)
					elapsed = append(elapsed, (end - now).Seconds())
				}
				now = end
			}
			slices.Sort(elapsed)
			res.elapsed = elapsed[len(elapsed)/2]
		case m.inFlight == 100:
			cfg.MaxSeqs = 512
			e := mustNew(t, cfg)
			var now time.Duration
			for range 2 { // a warm-up and a measured run
				var sum int
				rs := every(100, 0, nil, shape)
				for _, q := range rs {
					q.Tag = now
					sum += q.MaxTokens
				}
				end, err := Run(e, source(rs), nil)
				if err != nil {
					t.Fatal(err)
				}
				counted, res.tokens, now = rs, float64(sum)/(end-now).Seconds(), end
			}
		default:
			// Three rounds of the prompts, of which the second is counted: the
			// first is the warm-up, and the third keeps the load up.
			rs, _ := closed(t, cfg, m.inFlight, 450, func(i int) *Request { return shape(i % 150) })
			sum := 0
			for _, q := range rs[150:300] {
				sum += q.Life.Output
			}
			counted, res.tokens = rs[150:300], float64(sum)/(rs[300].Life.Queued-rs[150].Life.Queued).Seconds()
		}
		counted = slices.DeleteFunc(counted, func(q *Request) bool { return q.Life.Output < 2 })
		res.tpot, res.ttft = 1e3*quantile(counted, 0.5, tpot), 1e3*quantile(counted, 0.5, ttft).Seconds()
		return res
	}
	value := func(r result, k int) float64 {
		if publishedA100[k].tokens > 0 {
			return r.tokens
		}
		return r.tpot
	}
	var want []float64
	for _, m := range publishedA100 {
		want = append(want, cmp.Or(m.tokens, m.tpot))
	}
	fitted := calibrate(base, want, func(p Profile, k int) float64 { return value(run(p, k), k) })
	t.Logf("fitted: host %.2f ms a step, %.0f µs a decoding sequence (profile: %.2f ms, %.1f µs)", fitted.Host*1e3, fitted.PerDecode*1e6, base.Host*1e3, base.PerDecode*1e6)
	var errs []float64
	for k, m := range publishedA100 {
		before, after := run(base, k), run(fitted, k)
		e := value(after, k)/want[k] - 1
		held := ""
		if k%2 == 1 {
			held = ", held out"
			errs = append(errs, e)
		}
		what := "ms a token"
		if m.tokens > 0 {
			what = "tokens/s"
		}
		t.Logf("%s: %.4g %s measured, %.4g as it stands (%+.0f %%), %.4g fitted (%+.1f %%%s); median TTFT %.4g ms measured, %.4g ms",
			m.load, want[k], what, value(before, k), 100*(value(before, k)/want[k]-1), value(after, k), 100*e, held, m.medTTFT, after.ttft)
		if m.rate > 0 {
			t.Logf("%s: the last of 300 answered after %.1f s measured, %.1f s", m.load, m.elapsed, after.elapsed)
		}
	}
	judge(t, errs)
}

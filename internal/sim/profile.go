package sim

import (
	"fmt"
	"math"
	"sort"
	"strings"
	"time"
)

// Basis says how far a profile may be believed.
type Basis string

const (
	Measured     Basis = "measured"      // every GPU term was fitted to measurements on this GPU
	PartMeasured Basis = "part measured" // some terms were; Source says which
	Scaled       Basis = "scaled"        // computed from fits on other hardware or models: not a measurement
	Invented     Basis = "invented"      // like no GPU
)

// Profile is a step-time model of one GPU and model. All times are in seconds.
//
//	T = Host + W(N) + [Decodes > 0]·DecodeBase + PerDecode·Decodes + PerContext·Context
//	  + [Prefills > 0]·PrefillBase + PerAttended·Attended + Head(Sampled + Drafted)
//
// with the quantities of Batch, N its tokens, and W the time of the weights'
// matrix products: the measured Points where there are any, joined by straight
// lines, else max(Floor, Base + PerToken·N): streaming the weights from memory
// is the floor, and past the ridge the arithmetic decides. Head is HeadBase +
// HeadPerSeq·S. The shape is that of three independent sources (Vidur,
// LLMServingSim, inference-sim); each profile names its own.
type Profile struct {
	Name   string
	GPU    string
	Model  string
	Basis  Basis
	Source string

	Host                  float64
	Floor, Base, PerToken float64
	Points                []Point // in order of Tokens; Floor, Base and PerToken are then unused
	DecodeBase, PerDecode float64
	PerContext            float64 // per token of context of a decoding request
	PrefillBase           float64
	PerAttended           float64 // per new token and token it attends to
	HeadBase, HeadPerSeq  float64

	// The engine's defaults on this GPU.
	MaxBatchedTokens, MaxSeqs int
	Blocks                    int // of 16 tokens
}

// Point is a measured time of the matrix products for a number of tokens.
type Point struct {
	Tokens  int
	Seconds float64
}

// StepTime is how long a step with batch b takes, without jitter; 0 for an
// empty one.
func (p *Profile) StepTime(b Batch) time.Duration {
	if b.Tokens == 0 {
		return 0
	}
	// The conversions keep each product from being fused with its sum, so that
	// every processor rounds alike.
	t := p.Host + p.weights(b.Tokens)
	if b.Decodes > 0 {
		t += p.DecodeBase + float64(p.PerDecode*float64(b.Decodes)) + float64(p.PerContext*float64(b.Context))
	}
	if b.Prefills > 0 {
		t += p.PrefillBase + float64(p.PerAttended*float64(b.Attended))
	}
	if b.Sampled > 0 {
		t += p.HeadBase + float64(p.HeadPerSeq*float64(b.Sampled+b.Drafted))
	}
	return time.Duration(math.Round(t * 1e9))
}

// pass is the time of the target model's part in one token for each of n
// sequences, their contexts left out: what a draft pass takes its share of.
func (p *Profile) pass(n int) time.Duration {
	t := p.weights(n) + p.DecodeBase + float64(p.PerDecode*float64(n)) + p.HeadBase + float64(p.HeadPerSeq*float64(n))
	return time.Duration(math.Round(t * 1e9))
}

func (p *Profile) weights(n int) float64 {
	if len(p.Points) < 2 {
		return math.Max(p.Floor, p.Base+float64(p.PerToken*float64(n)))
	}
	// The segment that n lies in; beyond the ends, the first point's time and
	// the last segment's slope.
	i := sort.Search(len(p.Points), func(i int) bool { return p.Points[i].Tokens >= n })
	if i == 0 {
		return p.Points[0].Seconds
	}
	i = min(i, len(p.Points)-1)
	a, b := p.Points[i-1], p.Points[i]
	return a.Seconds + float64((b.Seconds-a.Seconds)*float64(n-a.Tokens)/float64(b.Tokens-a.Tokens))
}

const (
	ms = 1e-3
	us = 1e-6
)

// profiles in the order they are listed; the first is the default.
//
// Constants of the 8B model: 32 layers, width 4096, 32 query and 8 KV heads of
// 128, 6.98e9 weights in the layers (13.96 GB in bf16), 1.05 GB each in the
// embedding and the head, 131072 bytes of KV per token. KV blocks are computed
// as (0.92·memory − 16.06 GB − 2 GB of activations)/(16·131072 B), with 1 GB of
// activations on the RTX 4090.
var profiles = []Profile{
	{
		Name: "h100-llama3-8b", GPU: "H100 SXM 80 GB", Model: "Llama-3-8B bf16", Basis: Scaled,
		Source: "floor, intercept and slope scaled by 13.96/12.95 GB from Vidur's H100 profile of Llama-2-7B (microsoft/vidur 7d475133); context at 92 % of 3.35 TB/s, attention at 40 % of 989 TFLOP/s, head and host assumed. Not a measurement",
		Host:   0.9 * ms, Floor: 6.2 * ms, Base: 1.5 * ms, PerToken: 22.4 * us,
		PerContext: 0.0425 * us, PerAttended: 1.3e-9, HeadBase: 0.4 * ms,
		MaxBatchedTokens: 8192, MaxSeqs: 1024, Blocks: 26480,
	},
	{
		Name: "a100-llama3-8b", GPU: "A100 80 GB", Model: "Llama-3-8B fp16", Basis: PartMeasured,
		Source: "matrix products measured (microsoft/vidur 7d475133, A100 profile of Llama-3-8B); context at 92 % of 2.04 TB/s, attention at 40 % of 312 TFLOP/s and head at 85 % of the bandwidth scaled, host assumed",
		Host:   0.9 * ms,
		Points: []Point{{1, 9.70 * ms}, {64, 11.2 * ms}, {128, 13.2 * ms}, {256, 19.5 * ms}, {512, 34.6 * ms}, {1024, 75.1 * ms}, {4096, 273.6 * ms}},
		// 32 layers · 4 · 32 heads · 128 FLOP per pair of tokens.
		PerContext: 0.0699 * us, PerAttended: 4.2e-9, HeadBase: 0.6 * ms,
		MaxBatchedTokens: 2048, MaxSeqs: 256, Blocks: 26480,
	},
	{
		Name: "rtx4090-llama3.1-8b", GPU: "RTX 4090 24 GB", Model: "Llama-3.1-8B bf16", Basis: Measured,
		Source: "casys-kaist/LLMServingSim 5daddb2, profiles of vLLM 0.19.0 (2026-08-17): matrix products at six sizes; per layer, decode attention 19.95 + 0.162·n + 4.29e-3·n·kv µs and prefill attention 57.7 + 1.18e-4·T·(kv+T/2) µs; head 1.10 to 1.67 ms. Host time assumed",
		Host:   0.9 * ms,
		Points: []Point{{1, 15.2 * ms}, {64, 17.4 * ms}, {128, 19.7 * ms}, {256, 23.9 * ms}, {1024, 90.9 * ms}, {2048, 181.1 * ms}},
		// 32 layers of each.
		DecodeBase: 32 * 19.95 * us, PerDecode: 32 * 0.162 * us, PerContext: 32 * 4.29e-3 * us,
		PrefillBase: 32 * 57.7 * us, PerAttended: 32 * 1.18e-4 * us,
		HeadBase: 1.10 * ms, HeadPerSeq: 2.2 * us,
		MaxBatchedTokens: 2048, MaxSeqs: 256, Blocks: 2390,
	},
	{
		Name: "rtxpro6000-llama3.1-8b", GPU: "RTX PRO 6000 96 GB", Model: "Llama-3.1-8B bf16", Basis: PartMeasured,
		Source: "casys-kaist/LLMServingSim 5daddb2, profiles of vLLM 0.19.0: matrix products at six sizes, context 0.0856 µs per token, head 0.71 to 0.83 ms measured; prefill attention scaled from the RTX 4090's by the slopes 37/88, host assumed",
		Host:   0.9 * ms,
		Points: []Point{{1, 10.1 * ms}, {128, 11.6 * ms}, {256, 13.9 * ms}, {512, 22.2 * ms}, {1024, 39.7 * ms}, {2048, 76.7 * ms}},

		PerContext: 0.0856 * us, PerAttended: 1.6e-9, HeadBase: 0.71 * ms, HeadPerSeq: 0.47 * us,
		MaxBatchedTokens: 8192, MaxSeqs: 1024, Blocks: 33500,
	},
	{
		Name: "tiny", GPU: "none", Model: "none", Basis: Invented,
		Source: "round figures for tests and demonstrations: 2 ms a step, 10 µs a token",
		Floor:  2 * ms, Base: 1 * ms, PerToken: 10 * us, PerContext: 0.001 * us,
		MaxBatchedTokens: 2048, MaxSeqs: 256, Blocks: 4097,
	},
}

// Profiles returns the built-in profiles, the default first.
func Profiles() []Profile { return append([]Profile(nil), profiles...) }

// DefaultProfile returns h100-llama3-8b, which is scaled, not measured.
func DefaultProfile() Profile { return profiles[0] }

// ProfileByName returns a built-in profile; the error lists the valid names.
func ProfileByName(name string) (Profile, error) {
	var names []string
	for _, p := range profiles {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Profile{}, fmt.Errorf("unknown engine profile %q: use one of %s", name, strings.Join(names, ", "))
}

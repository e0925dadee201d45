package sim_test

import (
	"fmt"
	"time"

	"github.com/trueload/trueload/internal/sim"
)

// Ten requests of the same 100-token prompt, one every 5 ms, on the tiny
// profile: all but the first find the prompt's whole blocks in the cache.
func ExampleRun() {
	profile, err := sim.ProfileByName("tiny")
	if err != nil {
		panic(err)
	}
	engine, err := sim.New(sim.Config{Profile: profile})
	if err != nil {
		panic(err)
	}
	i := -1
	end, err := sim.Run(engine, func() (time.Duration, *sim.Request, bool) {
		i++
		r := &sim.Request{Prompt: make([]sim.Token, 100), MaxTokens: 3}
		return time.Duration(i) * 5 * time.Millisecond, r, i < 10
	}, func(s *sim.Step) {
		for _, r := range s.Scheduled {
			if s.Start < 10*time.Millisecond {
				fmt.Println(s.Start, "prefill", s.Batch.PrefillTokens, "cached", r.Life.Cached, "first token at", s.End())
			}
		}
	})
	if err != nil {
		panic(err)
	}
	c := engine.Counters()
	fmt.Println(end.Round(time.Millisecond), c.PromptTokens, "prompt tokens,", c.CachedPromptTokens, "cached,", c.GenerationTokens, "generated")
	// Output:
	// 0s prefill 100 cached 0 first token at 2ms
	// 6.000203ms prefill 4 cached 96 first token at 8.000203ms
	// 52ms 1000 prompt tokens, 864 cached, 30 generated
}

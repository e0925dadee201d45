package httpapi

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trueload/trueload/internal/sim"
)

// conversations sends turns of many sessions, in random order, each turn with
// the whole history behind it, and returns the share of prompt tokens that the
// replicas had cached, and what each replica was sent.
func conversations(t *testing.T, o Options, header bool) (hits float64, byReplica []int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var prompt, cached int
		byReplica = make([]int, o.Replicas)
		o.Truth = func(tr Truth) {
			mu.Lock()
			defer mu.Unlock()
			prompt += tr.PromptTokens
			cached += tr.CachedTokens
			byReplica[tr.Replica]++
		}
		o.Engine.Profile = flat
		_, c := start(t, o)
		const sessions, turns = 40, 5
		rng := rand.New(rand.NewPCG(7, 7))
		history := make([]string, sessions)
		order := make([]int, 0, sessions*turns)
		for range turns {
			order = append(order, rng.Perm(sessions)...)
		}
		var wg sync.WaitGroup
		for _, s := range order {
			if history[s] != "" {
				history[s] += `,{"role":"assistant","content":"yes"},`
			}
			// 60 words, of which the first tells the session.
			history[s] += fmt.Sprintf(`{"role":"user","content":"s%d%s"}`, s, strings.Repeat(" about", 59))
			body := `{"messages":[{"role":"system","content":"be brief"},` + history[s] + `],"max_tokens":2,"ignore_eos":true,"stream":true}`
			wg.Go(func() {
				req, _ := http.NewRequest("POST", "http://sim/v1/chat/completions", strings.NewReader(body))
				if header {
					req.Header.Set("X-Session-Id", fmt.Sprint("session ", s))
				}
				resp, err := c.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				for b := make([]byte, 4096); err == nil; {
					_, err = resp.Body.Read(b)
				}
			})
			time.Sleep(300 * time.Millisecond)
		}
		wg.Wait()
		synctest.Wait()
		hits = float64(cached) / float64(prompt)
	})
	return hits, byReplica
}

// What a router does to the prefix cache: in turn, a session's history lies on
// one of four replicas when it comes back; by prefix and by session it is where
// the turn goes, and four caches hold what one cannot.
func TestRoutersAndHits(t *testing.T) {
	run := func(r Router, replicas, blocks int, header bool) (float64, []int) {
		return conversations(t, Options{Replicas: replicas, Router: r, Engine: sim.Config{Blocks: blocks}}, header)
	}
	const small, large = 513, 4097 // the sessions have about 840 blocks in the end
	one, _ := run(RoundRobin, 1, large, false)
	oneSmall, _ := run(RoundRobin, 1, small, false)
	inTurn, _ := run(RoundRobin, 4, large, false)
	byPrefix, spread := run(PrefixAware, 4, small, false)
	bySession, _ := run(SessionPinned, 4, small, false)
	byHeader, _ := run(SessionPinned, 4, small, true)
	t.Logf("hits: one large replica %.3f, one small %.3f; four large in turn %.3f; four small by prefix %.3f, by session %.3f, by header %.3f; by prefix they got %v",
		one, oneSmall, inTurn, byPrefix, bySession, byHeader, spread)
	// The k-th turn has a history of k-1 turns: of the tokens of five turns,
	// (0+1+2+3+4)/(1+2+3+4+5) = 2/3 are history, less what is not in a whole
	// block.
	if one < 0.6 || one > 2./3 {
		t.Errorf("one large replica hits %.3f, want a little below 2/3", one)
	}
	for name, h := range map[string]float64{"by prefix": byPrefix, "by session": bySession, "by header": byHeader} {
		if h < one-0.03 {
			t.Errorf("%s: four small replicas hit %.3f, one large %.3f", name, h, one)
		}
	}
	if inTurn > 0.6*one || oneSmall > 0.6*one {
		t.Errorf("in turn %.3f, one small replica %.3f, one large %.3f", inTurn, oneSmall, one)
	}
	for i, n := range spread {
		if n < 20 {
			t.Errorf("by prefix, replica %d got %d of 200 requests", i, n)
		}
	}
}

// Prompts that all begin alike are not all sent to one replica.
func TestPrefixAwareSpreadsASharedPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		got := make([]int, 4)
		_, c := start(t, Options{Engine: sim.Config{Profile: flat}, Replicas: 4, Router: PrefixAware, TemplateTokens: 200, Truth: func(tr Truth) {
			mu.Lock()
			defer mu.Unlock()
			got[tr.Replica]++
		}})
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() { c.stream("/v1/chat/completions", chat(20+i%7, 100, "")) })
			time.Sleep(10 * time.Millisecond)
		}
		wg.Wait()
		synctest.Wait()
		for i, n := range got {
			if n < 20 {
				t.Errorf("replica %d got %d of 200 requests: %v", i, n, got)
			}
		}
	})
}

// A session stays where it is, whatever else is sent; sessions spread evenly;
// and when a replica is down, its sessions alone move.
func TestSessionsArePinned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := start(t, Options{Engine: sim.Config{Profile: flat}, Replicas: 4, Router: SessionPinned, SessionHeader: "X-User"})
		where := func(session string) int {
			r, _ := http.NewRequest("POST", "/", nil)
			r.Header.Set("X-User", session)
			return s.pick(r, &body{}, &sim.Request{Prompt: []sim.Token{1}}).index
		}
		const n = 1000
		home := make([]int, n)
		count := make([]int, 4)
		for i := range n {
			home[i] = where(fmt.Sprint(i))
			count[home[i]]++
		}
		for i, c := range count {
			// Binomial, n 1000 and p 1/4: 250 ± 13.7.
			if c < 180 || c > 320 {
				t.Errorf("replica %d has %d of 1000 sessions", i, c)
			}
		}
		if err := s.Inject(Fault{Kind: Restart, Replica: 2, For: time.Minute}); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if at := where(fmt.Sprint(i)); at == 2 || home[i] != 2 && at != home[i] {
				t.Fatalf("with replica 2 down, session %d went from %d to %d", i, home[i], at)
			}
		}
		time.Sleep(time.Minute)
		for i := range n {
			if at := where(fmt.Sprint(i)); at != home[i] {
				t.Fatalf("session %d did not come back: %d, not %d", i, at, home[i])
			}
		}
		// Without the header: the conversation up to its first user message.
		key := func(messages ...string) uint64 {
			b := &body{}
			for i, m := range messages {
				b.Messages = append(b.Messages, chatMessage{Role: []string{"system", "user", "assistant"}[min(i, 2)], Content: content{m}})
			}
			return sessionKey("", b, &sim.Request{Prompt: []sim.Token{1}})
		}
		if key("s", "a") != key("s", "a", "b", "c") || key("s", "a") == key("s", "b") || key("s", "a") == key("t", "a") {
			t.Error("keys of conversations")
		}
		plain := func(tokens int) uint64 {
			return sessionKey("", &body{}, &sim.Request{Prompt: make([]sim.Token, tokens)})
		}
		if plain(64) != plain(100) || plain(63) == plain(64) {
			t.Error("keys of plain prompts")
		}
	})
}

package loadgen

import (
	"testing"
	"time"
)

// TestPacers holds both pacers to the interface's contract on the real clock.
func TestPacers(t *testing.T) {
	start := time.Now()
	now := func() time.Duration { return time.Since(start) }
	for _, c := range []struct {
		name string
		p    Pacer
	}{{"real", NewPacer(now)}, {"virtual", NewVirtualPacer(now)}} {
		t.Run(c.name, func(t *testing.T) {
			defer c.p.Close()
			for _, d := range []time.Duration{-ms, 0, time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 3 * ms} {
				until := now() + d
				if c.p.Wait(until); now() < until {
					t.Errorf("a wait for %v returned %v early", d, until-now())
				}
			}
			c.p.Wake()
			begin := now()
			if c.p.Wait(begin + time.Minute); now()-begin > 10*sec {
				t.Error("a wake before the wait was lost")
			}
			// Every wake ends a wait, however the two meet: a lost one hangs here.
			asked, woken := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(woken)
				for range asked {
					c.p.Wake()
				}
			}()
			for i := range 5000 {
				asked <- struct{}{}
				switch i % 3 {
				case 0:
					time.Sleep(0)
				case 1:
					for begin := now(); now()-begin < time.Duration(i%20)*time.Microsecond; {
					}
				}
				c.p.Wait(forever)
			}
			close(asked)
			<-woken
		})
	}
}

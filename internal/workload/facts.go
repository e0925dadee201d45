package workload

import (
	"fmt"
	"time"

	"github.com/trueload/trueload/internal/synth"
)

// Facts say what a plan is made of, and how far it is from production. They
// are known before anything is sent.
type Facts struct {
	// Sessions and Turns are expected in the measured phases. -1 in closed loop,
	// where the server decides.
	Sessions, Turns float64
	// Cut are the distributions whose bounds leave something out.
	Cut []Cut
	// Files are the texts and traces that were read.
	Files []File
	// Horizon is how long before the start the load is taken to have been on,
	// and Carried how many of its sessions still go on at the start. 0: sessions
	// of one turn, or a replay.
	Horizon time.Duration
	Carried int
	// Synthetic says what was made up; empty where nothing was.
	Synthetic []string
	// NotReproduced says what of production traffic this plan leaves out.
	NotReproduced []string
	// Notes are what a reader of the result should know.
	Notes []string
}

// Cut is a distribution that bounds cut: values outside are drawn again.
type Cut struct {
	Class, What string
	Share       float64 // 0 to 1, of draws
}

// File is a file that the plan draws on.
type File struct {
	Name       string
	Rows, Used int
	Dropped    []Dropped
}

// Dropped are the rows of a file that were left out for one reason.
type Dropped struct {
	Reason string
	Rows   int64
	First  string // where the first one stands
}

// Facts returns what the plan is made of, to be read only.
func (w *Workload) Facts() *Facts { return &w.facts }

func (w *Workload) note(format string, args ...any) {
	w.facts.Notes = append(w.facts.Notes, fmt.Sprintf(format, args...))
}

func (w *Workload) cuts(c *class) {
	for _, d := range []struct {
		what string
		dist *synth.Dist
	}{
		{"input_tokens", c.input}, {"output_tokens", c.output},
		{"session.turns", c.turns}, {"session.think", c.think},
	} {
		if d.dist != nil && d.dist.Cut() > 0 {
			w.facts.Cut = append(w.facts.Cut, Cut{c.spec.Name, d.what, d.dist.Cut()})
		}
	}
}

// describe completes the facts once the phases are known.
func (w *Workload) describe() {
	f := &w.facts
	f.Sessions, f.Turns = -1, -1
	if w.exp.Load.Closed == nil {
		f.Sessions, f.Turns = 0, 0
		for i, p := range w.exp.Load.Phases {
			if ph := w.phases[i]; p.Measured {
				n := float64(ph.Rate * (ph.End - ph.Start).Seconds())
				f.Sessions += n
				f.Turns += float64(n * w.meanTurns(i))
			}
		}
	}
	if p := w.replay; p != nil {
		f.Synthetic = append(f.Synthetic, "prompt text: random words in the trace's lengths")
		if !w.byTrace() {
			f.NotReproduced = append(f.NotReproduced, "the trace's arrival times")
		}
		if p.spec.Speed != 1 && p.spec.Speed > 0 {
			f.NotReproduced = append(f.NotReproduced, fmt.Sprintf("the trace's pace: it is played at %g times its speed", p.spec.Speed))
		}
		if p.blockTokens == 0 {
			f.NotReproduced = append(f.NotReproduced, "prefixes shared between requests: the trace does not say")
		}
		if p.repeat {
			f.NotReproduced = append(f.NotReproduced, "prefixes shared between two rounds of the repeated trace")
		}
		f.NotReproduced = append(f.NotReproduced, "what the prompts say")
		return
	}
	for _, c := range w.classes {
		name := "class " + c.spec.Name + ": "
		switch {
		case c.text == nil:
			f.Synthetic = append(f.Synthetic, name+"prompt text is random words")
		case c.input != nil || c.pairs != nil:
			f.Synthetic = append(f.Synthetic, name+"prompts are real text cut or repeated to the length asked for, by 4 bytes a token")
		default:
			w.note("%sinput tokens of real text are not known before the server counts them; the plan guesses 4 bytes a token", name)
		}
		if c.pairs == nil && c.text == nil {
			f.Synthetic = append(f.Synthetic, name+fmt.Sprintf("input lengths %v, output lengths %v, drawn apart", c.input, c.output))
			f.NotReproduced = append(f.NotReproduced, name+"correlation of input and output lengths")
		}
		if c.text != nil && f.Sessions > float64(c.text.Len()) {
			w.note("%sabout %.0f sessions draw on %d texts, which come again in the same order", name, f.Sessions, c.text.Len())
		}
		if c.pool == nil && c.text == nil {
			f.NotReproduced = append(f.NotReproduced, name+"prefixes shared between sessions")
		}
	}
	if !w.byTrace() {
		f.NotReproduced = append(f.NotReproduced, "drifts of the rate other than the phases'")
	}
}

package experiment

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/trueload/trueload/internal/analysis"
	"github.com/trueload/trueload/internal/plan"
	"github.com/trueload/trueload/internal/record"
	"github.com/trueload/trueload/internal/report"
	"github.com/trueload/trueload/internal/spec"
	"github.com/trueload/trueload/internal/stats"
	"github.com/trueload/trueload/internal/store"
)

// Summarize makes the summary of a result directory again from its records:
// for a run that was cut short, or to judge an old one by another SLO (nil: its
// own).
func Summarize(res *store.Result, slo *spec.SLO) (*analysis.Summary, error) {
	var man Manifest
	if err := res.ReadJSON(store.ManifestName, &man); err != nil {
		return nil, err
	}
	if man.Tool != "trueload" || len(man.Phases) == 0 {
		return nil, fmt.Errorf("%s/%s is not the manifest of a run: it names no tool and no phases", res.Dir(), store.ManifestName)
	}
	text, err := res.ReadFile(store.ExperimentName)
	if err != nil {
		return nil, err
	}
	exp, err := spec.Parse(store.ExperimentName, text)
	if err != nil {
		return nil, err
	}
	if slo != nil {
		exp.Rejudge(*slo)
	}
	cut := res.CutShort && man.End == ""
	switch {
	case cut:
		man.Findings = append(man.Findings, analysis.Finding{
			Rule: "cut-short", Severity: analysis.Error,
			Message: "the run did not end by itself: this is what was measured up to its last second, and what was in flight then is unfinished",
			Remedy:  "run it again for figures of the whole window",
		})
	case res.CutShort: // it ended, and the last step failed
		man.Findings = append(man.Findings, analysis.Finding{
			Rule: "result-incomplete", Severity: analysis.Warning,
			Message: "the run ended and its tables were not written: these figures come from the journal",
		})
	}
	sum, err := newSummarizer(exp, &man, cut)
	if err != nil {
		return nil, err
	}
	if cut {
		err := res.Records(func(r *record.Record) error {
			if r.Done != record.Unset {
				man.LoadEnd = max(man.LoadEnd, r.Done)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if man.LoadEnd > 0 {
		sum.Cut(man.LoadEnd)
	}
	why := newFailures(man.Phases)
	if err := res.Records(func(r *record.Record) error { sum.Add(r); why.add(r); return nil }); err != nil {
		return nil, err
	}
	if cut { // else the run itself has noted them
		man.Findings = append(man.Findings, why.findings()...)
	}
	if res.Lost > 0 {
		man.Findings = append(man.Findings, analysis.Finding{
			Rule: "journal-damaged", Severity: analysis.Warning,
			Message: fmt.Sprintf("the last %d bytes of the journal could not be read: a torn end, or all that follows a damaged place", res.Lost),
		})
	}
	return summarize(sum, exp, &man), nil
}

func newSummarizer(exp *spec.Experiment, man *Manifest, cut bool) (*analysis.Summarizer, error) {
	return analysis.New(analysis.Options{
		Phases: man.Phases, SLO: objectives(exp), ClosedLoop: man.Closed, CutShort: cut,
	})
}

// summarize adds to the records' figures what only the run knows.
func summarize(sum *analysis.Summarizer, exp *spec.Experiment, man *Manifest) *analysis.Summary {
	sum.Know(analysis.Facts{
		Run: analysis.RunFacts{
			ID: man.ID, Name: man.Name, StartedAt: man.StartedAt.Format(time.RFC3339Nano), PlanHash: man.PlanHash, Seed: man.Seed, Salt: man.Salt,
			Synthetic: man.Synthetic, NotReproduced: man.NotReproduced, Labels: man.Labels,
		},
		Planned: analysis.Planned{Turns: man.Planned}, Generator: man.Generator, Prefix: man.Prefix,
	})
	s := sum.Summary()
	if p := s.Prefix; p != nil {
		// Observed by the server's own word. Servers leave the field out where
		// nothing was cached, so once any answer had it, absent means none.
		if c, in := s.Tokens.Cached.Delivered, s.Tokens.Input.Delivered; c != nil && c.N > 0 && in != nil && in.Total > 0 {
			share := float64(c.Total) / float64(in.Total)
			p.ObservedUsage = &share
		}
	}
	s.Findings = append(man.Findings, s.Findings...)
	return s
}

// objectives translates the experiment's SLO.
func objectives(exp *spec.Experiment) analysis.SLO {
	of := func(s *spec.SLO) (out []analysis.Objective) {
		for name, o := range s.Objectives() {
			if o.Limit > 0 {
				out = append(out, analysis.Objective{Figure: name, Limit: o.Limit})
			}
			for _, q := range o.Quantiles {
				out = append(out, analysis.Objective{Figure: name, Quantile: stats.Permille(math.Round(q.P * 1000)), Limit: q.Limit})
			}
		}
		return out
	}
	slo := analysis.SLO{Objectives: of(&exp.SLO), Attainment: float64(exp.SLO.Attainment), Classes: map[string][]analysis.Objective{}}
	for i := range exp.Workload.Classes {
		if c := &exp.Workload.Classes[i]; len(of(&c.SLO)) > 0 {
			slo.Classes[c.Name] = of(&c.SLO)
		}
	}
	return slo
}

// files takes the files of a result directory.
type files interface {
	WriteFile(name string, b []byte) error
}

// WriteSummary writes every form of a summary that a result directory holds.
func WriteSummary(out files, s *analysis.Summary) error {
	for _, f := range []struct {
		name  string
		write func(io.Writer, *analysis.Summary) error
	}{
		{store.SummaryName, report.JSON}, {store.MarkdownName, report.Markdown}, {store.HTMLName, report.HTML},
		{store.FindingsName, report.FindingsJSON},
	} {
		var b bytes.Buffer
		if err := f.write(&b, s); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if err := out.WriteFile(f.name, b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// prefixMeter counts how much of the plan's prompts an engine could skip, at an
// infinite cache, as its sessions go by.
type prefixMeter struct {
	phases []plan.Phase
	blocks *plan.BlockCache
	seen   map[uint64]bool // shared prefixes
	traced bool            // prompts name their blocks
	live   bool            // later turns carry replies that no plan knows

	skippable, tokens int64 // of measured turns without blocks
}

// engineBlock is the block size that planned reuse assumes where a trace has no
// blocks of its own: vLLM's default.
const engineBlock = 16

func newPrefixMeter(phases []plan.Phase) *prefixMeter {
	return &prefixMeter{phases: phases, blocks: plan.NewBlockCache(0), seen: map[uint64]bool{}}
}

// add counts a session of a measured phase; of a closed loop any, for when its
// sessions come no plan knows. The warm-up's has a salt, and so a cache, of its
// own.
func (m *prefixMeter) add(s *plan.Session) {
	ph, _ := plan.PhaseAt(m.phases, s.Scheduled)
	if s.Scheduled != plan.Unset && !ph.Measured {
		return
	}
	m.live = m.live || len(s.Turns)+len(s.History) > 1 && !s.Scripted
	before := 0 // tokens of the history, which a scripted session's plan knows
	for _, t := range s.History {
		before += t.InputTokens + t.OutputTokens
	}
	cached := 0 // of the next prompt: the shared prefix, or all of the last prompt
	first := &s.Turns[0].Prompt
	if len(s.History) > 0 {
		first = &s.History[0].Prompt
	}
	if first.PrefixTokens > 0 {
		if m.seen[first.PrefixID] {
			cached = first.PrefixTokens
		}
		m.seen[first.PrefixID] = true
	}
	for i := range s.Turns {
		t := &s.Turns[i]
		if p := &t.Prompt; len(p.Blocks) > 0 {
			m.traced = true
			m.blocks.Add(p.Blocks, t.InputTokens, p.BlockTokens)
			continue
		}
		prompt := before + t.InputTokens
		m.tokens += int64(prompt)
		m.skippable += int64(min(cached, prompt-1) / engineBlock * engineBlock)
		cached, before = prompt, prompt+t.OutputTokens // the planned reply is not what the engine wrote
	}
}

// figures are what is planned; what was observed comes from the records.
func (m *prefixMeter) figures(templateTokens int, fresh bool) *analysis.Prefix {
	p := &analysis.Prefix{CacheState: "unknown"}
	if fresh {
		p.CacheState = "cold" // a salt that no earlier run had
	}
	if templateTokens >= 0 {
		n := int64(templateTokens)
		p.TemplateFloorTokens = &n
	}
	switch {
	case m.traced:
		share := m.blocks.Reuse().Skippable()
		p.PlannedInfinite = &share
	case m.tokens > 0 && !m.live:
		share := float64(m.skippable) / float64(m.tokens)
		p.PlannedInfinite = &share
	}
	return p
}

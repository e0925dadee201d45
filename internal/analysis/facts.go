package analysis

// Facts are what the caller knows of a run, some of it only when it has ended. They pass
// into the summary; of Generator, the figures that records hold are filled in.
type Facts struct {
	Run RunFacts
	// Planned is what the whole plan held, warm-up and tail included, to notice
	// missing records; a zero is not checked.
	Planned   Planned
	Generator Generator
	Prefix    *Prefix
	Replicas  []Replica
}

// Know takes the facts, in place of those of the options; call it before Summary.
func (s *Summarizer) Know(f Facts) { s.opt.Facts = f }

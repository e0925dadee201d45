package protocol

import (
	"fmt"
	"github.com/trueload/trueload/internal/plan"
)

// texts is a Renderer of short texts that name their turn.
type texts struct{}

func (texts) Messages(s *plan.Session, t *plan.Turn) ([]Message, error) {
	m := []Message{{"user", fmt.Sprintf(" ask %d", t.Index)}}
	if t.Index == 0 && t.Prompt.PrefixTokens > 0 {
		m = append([]Message{{"system", "You are <b>."}}, m...)
	}
	return m, nil
}

func (texts) Reply(s *plan.Session, t *plan.Turn) (string, error) {
	return fmt.Sprintf(" planned %d", t.Index), nil
}

func (texts) Tokens(s *plan.Session, t *plan.Turn) ([]int, error) {
	return []int{1, 2, int(t.Index) + 3}, nil
}

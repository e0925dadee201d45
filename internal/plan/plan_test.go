package plan

import "testing"

func TestAskedInput(t *testing.T) {
	turn := func(in, out int, item int64) Turn {
		return Turn{InputTokens: in, OutputTokens: out, Prompt: Prompt{Item: item}}
	}
	drawn := Session{History: []Turn{turn(100, 50, -1)}, Turns: []Turn{turn(20, 10, -1), turn(30, 11, -1), turn(40, 12, -1)}}
	scripted := drawn
	scripted.Scripted = true
	for _, c := range []struct {
		name string
		s    Session
		turn int
		want int
	}{
		{"first turn, with history", drawn, 0, 100 + 50 + 20},
		{"after a live reply", drawn, 1, -1},
		{"scripted", scripted, 2, 100 + 50 + 20 + 10 + 30 + 11 + 40},
		// The length of real text is the server's to count.
		{"real text", Session{Turns: []Turn{turn(100, 10, 0)}}, 0, -1},
		{"real text before it", Session{Scripted: true, Turns: []Turn{turn(100, 10, 3), turn(9, 1, -1)}}, 1, -1},
		{"real text in the history", Session{History: []Turn{turn(100, 10, 3)}, Turns: []Turn{turn(9, 1, -1)}}, 0, -1},
	} {
		if got := c.s.AskedInput(c.turn); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

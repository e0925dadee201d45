package trace

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// load opens a trace and loads it.
func load(path string, o Options, limit int) (rows []Row, info Info, outOfOrder int, err error) {
	r, err := Open(path, o)
	if err != nil {
		return nil, Info{}, 0, err
	}
	defer r.Close()
	rows, outOfOrder, err = r.Load(limit)
	return rows, r.Info(), outOfOrder, err
}

func readAll(r *Reader) ([]Row, error) {
	var rows []Row
	for {
		row, err := r.Next()
		if err == io.EOF {
			return rows, nil
		}
		if err != nil {
			return rows, err
		}
		rows = append(rows, row)
	}
}

func read(t *testing.T, text string, o Options) ([]Row, *Reader) {
	t.Helper()
	r, err := NewReader(strings.NewReader(text), "f", o)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := readAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return rows, r
}

// row is the wanted row without what the case does not speak of.
func row(line int, at time.Duration, in, out int) Row {
	return Row{Line: line, At: at, Delay: unset, Input: in, Output: out}
}

const ms = time.Millisecond

func TestFormats(t *testing.T) {
	burst := func(line int, at time.Duration, in, out int, model, session string, failed bool) Row {
		r := row(line, at, in, out)
		r.Model, r.Session, r.Failed = model, session, failed
		return r
	}
	blocks := func(r Row, ids ...uint64) Row { r.Blocks = ids; return r }
	turn := func(r Row, session string, delay time.Duration) Row { r.Session, r.Delay = session, delay; return r }
	for _, c := range []struct {
		name, text string
		format     Format
		zero       string
		want       []Row
	}{
		{"azure 2023: CRLF, 7 digits, no line end at the end",
			"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319601,3180,8",
			Azure, "2023-11-16T18:17:03.97996Z", []Row{row(2, 0, 4808, 10), row(3, 52*ms+100, 3180, 8)}},
		{"azure 2024: with and without a fraction, with a zone",
			"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00.001163+00:00,1452,3\n2024-05-12 00:00:01+00:00,7,0\n",
			Azure, "2024-05-12T00:00:00.001163Z", []Row{row(2, 0, 1452, 3), row(3, time.Second-1163*time.Microsecond, 7, 0)}},
		{"azure 2025: RFC 3339 and images",
			"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15T12:00:00.269Z,3,770,491\n",
			AzureLMM, "2024-10-15T12:00:00.269Z", []Row{{Line: 2, Delay: unset, Input: 770, Output: 491, Images: 3}}},
		{"columns in another order, a byte order mark, spaces, a blank line, quotes",
			"\xef\xbb\xbf\n generatedtokens , TIMESTAMP,contexttokens\n1,2024-10-15T12:00:00Z, 2 \n\n3,\"2024-10-15T12:00:00.5Z\",\"4\"\n",
			Azure, "2024-10-15T12:00:00Z", []Row{row(3, 0, 2, 1), row(5, 500*ms, 4, 3)}},
		{"BurstGPT with six columns: no answer is a failure",
			"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,10,0,10,API log\n",
			BurstGPT, "", []Row{burst(2, 5*time.Second, 472, 18, "ChatGPT", "", false), burst(3, 45*time.Second, 10, 0, "GPT-4", "", true)}},
		{"BurstGPT with eight columns: times with a point, sessions",
			"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n19440111.5,,2,ChatGPT,36,29,65,API log\n",
			BurstGPT, "", []Row{burst(2, 19440110*time.Second, 906, 446, "GPT-4", "1722ac82", false), burst(3, 19440111500*ms, 36, 29, "ChatGPT", "", false)}},
		{"Mooncake, the last block partial, and as extended by others",
			`{"timestamp": 27482, "input_length": 1025, "output_length": 52, "hash_ids": [46, 47, 18446744073709551615]}` + "\n" +
				`{"session_id":"a\u00e9","timestamp":28000.5,"input_length":512,"output_length":1,"hash_ids":[46],"extra":{"a":[1,"}"]}}` + "\n" +
				`{"session_id":"a","delay":1500,"input_length":3,"output_length":1,"hash_ids":[],"model":"m"}`,
			Mooncake, "", []Row{
				blocks(row(1, 27482*ms, 1025, 52), 46, 47, 1<<64-1),
				turn(blocks(row(2, 28000*ms+500*time.Microsecond, 512, 1), 46), "aé", unset),
				{Line: 3, At: unset, Session: "a", Delay: 1500 * ms, Input: 3, Output: 1, Model: "m"}}},
		{"Bailian: seconds, chats and their parents, blocks of 16",
			`{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 17, "output_length": 132, "type": "text", "turn": 1, "hash_ids": [4, 5]}` + "\n" +
				`{"chat_id": 160, "parent_chat_id": 159, "timestamp": 62.5, "input_length": 676, "output_length": 80, "type": "text", "turn": 2}` + "\n" +
				`{"chat_id": 161, "parent_chat_id": 160, "timestamp": 63, "input_length": 700, "output_length": 81, "type": "text", "turn": 3}` + "\n" +
				`{"chat_id": 7, "parent_chat_id": 3, "timestamp": 64, "input_length": 1, "output_length": 1, "type": "text", "turn": 2}`,
			Bailian, "", []Row{
				turn(blocks(row(1, 61114*ms, 17, 132), 4, 5), "159", unset), turn(row(2, 62500*ms, 676, 80), "159", unset),
				turn(row(3, 63*time.Second, 700, 81), "159", unset), turn(row(4, 64*time.Second, 1, 1), "3", unset)}},
		{"vidur", "arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,374,44\n4.3144579,396,109\n",
			Vidur, "", []Row{row(2, 250*ms, 374, 44), row(3, 4314457900, 396, 109)}},
		{"lengths alone", "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n74,918,992,0.08\n",
			Lengths, "", []Row{row(2, unset, 74, 918)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, r := read(t, c.text, Options{})
			if r.Info().Format != c.format || r.Info().Why == "" {
				t.Errorf("format %s (%s), want %s", r.Info().Format, r.Info().Why, c.format)
			}
			if z := r.Info().Zero; c.zero == "" != z.IsZero() || c.zero != "" && z.Format(time.RFC3339Nano) != c.zero {
				t.Errorf("zero is %s, want %s", z, c.zero)
			}
			if r.Info().Timed != (c.format != Lengths) {
				t.Errorf("timed: %v", r.Info().Timed)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
			if d := r.Dropped(); len(d) > 0 {
				t.Errorf("dropped %+v", d)
			}
			if again, _ := read(t, c.text, Options{Format: c.format}); !reflect.DeepEqual(again, c.want) {
				t.Errorf("with the format given: %+v", again)
			}
		})
	}
}

// The small samples of later Azure traces and of BurstGPT 3 are read whole.
func TestSamples(t *testing.T) {
	for _, c := range []struct {
		file string
		rows int
		span time.Duration
	}{
		{"azure_code_2024.csv", 10, 7*24*time.Hour - 80429*time.Microsecond},
		{"azure_conv_2024.csv", 10, 0},
		{"azure_lmm_2025.csv", 10, 7*24*time.Hour - 305*ms},
		{"burstgpt_3.csv", 4, 144 * time.Second},
	} {
		rows, info, outOfOrder, err := load(filepath.Join(traces, c.file), Options{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		span := rows[len(rows)-1].At
		if len(rows) != c.rows || outOfOrder != 0 || rows[0].At != 0 || c.span != 0 && span != c.span {
			t.Errorf("%s (%s): %d rows, %d out of order, span %s, want %d, 0, %s", c.file, info.Format, len(rows), outOfOrder, span, c.rows, c.span)
		}
	}
}

// Rows 0, 1, 2, 9 and 11 ms apart, unsorted, as every writer of dates has them.
func TestL11_TimesKeepTheirDigits(t *testing.T) {
	offsets := []int{11, 0, 9, 2, 1}
	for _, c := range []struct {
		name, head string
		line       func(i, off int) string
	}{
		{"7 digits, no zone", "TIMESTAMP,ContextTokens,GeneratedTokens\n", func(i, off int) string {
			return fmt.Sprintf("2023-11-16 18:17:03.%07d,%d,1\n", 9799600+off*100, i) // 100 ns ticks
		}},
		{"ISO 8601 with Z", "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n", func(i, off int) string {
			return fmt.Sprintf("2024-10-15T12:00:00.%03dZ,0,%d,1\n", 100+off, i)
		}},
		{"6 digits, or none, and a zone", "TIMESTAMP,ContextTokens,GeneratedTokens\n", func(i, off int) string {
			if off == 0 {
				return fmt.Sprintf("2024-05-12 02:00:00+02:00,%d,1\n", i)
			}
			return fmt.Sprintf("2024-05-12 00:00:00.%06d+00:00,%d,1\n", off*1000, i)
		}},
		{"seconds", "arrived_at,num_prefill_tokens,num_decode_tokens\n", func(i, off int) string {
			return fmt.Sprintf("%d.%03d,%d,1\n", 1_700_000_000, 500+off, i)
		}},
		{"milliseconds in JSON", "", func(i, off int) string {
			return fmt.Sprintf(`{"timestamp": %d, "input_length": %d, "output_length": 1}`+"\n", 27482+off, i)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := c.head
			for i, off := range offsets {
				text += c.line(i, off)
			}
			path := filepath.Join(t.TempDir(), "t")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			rows, _, outOfOrder, err := load(path, Options{}, 0)
			if err != nil {
				t.Fatal(err)
			}
			unit := ms
			if strings.HasPrefix(c.name, "7") {
				unit = 10 * time.Microsecond // the same steps in the digits that get cut first
			}
			var got, want []string
			for _, r := range rows {
				got = append(got, fmt.Sprint(r.At, r.Input))
			}
			for _, i := range []int{1, 4, 3, 2, 0} {
				want = append(want, fmt.Sprint(time.Duration(offsets[i])*unit, i))
			}
			if !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			if outOfOrder != 3 {
				t.Errorf("%d out of order, want 3", outOfOrder)
			}
		})
	}
}

func TestC3_BlocksMustCoverThePrompt(t *testing.T) {
	const one = `{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}` + "\n"
	for _, c := range []struct {
		name, text string
		block      int
		want       []string // in the error; none: no error
	}{
		{"512, read as 512", one, 0, nil},
		{"512, read as 16", one, 16, []string{"f:1:", "2 blocks of 16 tokens hold 32 tokens", "input_length is 600", "blocks of 512 would fit"}},
		{"the second row is one token too long", one + `{"timestamp": 1, "input_length": 1025, "output_length": 1, "hash_ids": [1, 2]}`, 0, []string{"f:2:", "hold 1024 tokens", "input_length is 1025"}},
		{"just not too long", one + `{"timestamp": 1, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}`, 0, nil},
		{"16, read as 512", `{"timestamp": 0, "input_length": 521, "output_length": 1, "hash_ids": [` + strings.Repeat("1,", 32) + `2]}`, 0, []string{"f:1:", "needs 2", "blocks of 16 would fit"}},
		{"16, read as 16", `{"timestamp": 0, "input_length": 521, "output_length": 1, "hash_ids": [` + strings.Repeat("1,", 32) + `2]}`, 16, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := NewReader(strings.NewReader(c.text), "f", Options{BlockTokens: c.block})
			if err != nil {
				t.Fatal(err)
			}
			_, err = readAll(r)
			if (err != nil) != (c.want != nil) {
				t.Fatal(err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in: %v", w, err)
				}
			}
		})
	}
	t.Run("one id too many is borne", func(t *testing.T) {
		rows, _ := read(t, `{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}`, Options{})
		if !slices.Equal(rows[0].Blocks, []uint64{1}) {
			t.Errorf("blocks %v", rows[0].Blocks)
		}
	})
}

func TestBrokenRows(t *testing.T) {
	azure := func(row string) string {
		return "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,1,1\n" + row + "\n2023-11-16 18:17:04,2,2\n"
	}
	mooncake := func(row string) string {
		return `{"timestamp":0,"input_length":1,"output_length":1}` + "\n" + row + "\n" + `{"timestamp":9,"input_length":2,"output_length":2}` + "\n"
	}
	for _, c := range []struct{ name, text, place, reason string }{
		{"a date that is none", azure("2023-11-46 18:17:03.9,1,1"), "f:3:1", "TIMESTAMP: " + errDate.Error()},
		{"a word for a length", azure("2023-11-16 18:17:03.9,many,1"), "f:3:23", "ContextTokens: not a number"},
		{"a length below zero", azure("2023-11-16 18:17:03.9,1,-1"), "f:3:25", "GeneratedTokens: below zero"},
		{"an empty field", azure("2023-11-16 18:17:03.9,,1"), "f:3:23", "ContextTokens: empty"},
		{"a row cut off", azure("2023-11-16 18:17:03.9,12"), "f:3:25", "GeneratedTokens: missing"},
		{"a row too long", azure("2023-11-16 18:17:03.9,12,1,5"), "f:3:28", "more fields than the header has"},
		{"a quotation mark too many", azure(`2023-11-16 18:17:03.9,"12,1`), "f:3:28", `extraneous or missing " in quoted-field`},
		{"half a length", azure("2023-11-16 18:17:03.9,1.5,1"), "f:3:23", "ContextTokens: not a whole number"},
		{"a line without end", azure(strings.Repeat("9", maxLine+1)), "f:3", "the line is longer than 8 MiB"},
		{"no JSON", mooncake(`{"timestamp":0,"input_length":1,"output_length":1`), "f:2:49", "not JSON"},
		{"no object", mooncake(`[1]`), "f:2:1", "not a JSON object"},
		{"a length in words", mooncake(`{"timestamp":0, "input_length":"x","output_length":1}`), "f:2:32", "input_length: not a number"},
		{"no length", mooncake(`{"timestamp":0, "output_length":1}`), "f:2", "input_length: missing"},
		{"a length of null", mooncake(`{"timestamp":0, "input_length":1,"output_length":null}`), "f:2", "output_length: missing"},
		{"no time and no session", mooncake(`{"input_length":1, "output_length":1}`), "f:2", "timestamp: missing"},
		{"ids that are no list", mooncake(`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":{"a":1}}`), "f:2:62", "hash_ids: not a list of whole numbers"},
		{"ids that are words", mooncake(`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":["a"]}`), "f:2:62", "hash_ids: not a list of whole numbers"},
		{"an id too large", mooncake(`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[18446744073709551616]}`), "f:2:62", "hash_ids: not a list of whole numbers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rows, r := read(t, c.text, Options{})
			if len(rows) != 2 || rows[0].Input != 1 || rows[1].Input != 2 {
				t.Errorf("the other rows are %+v", rows)
			}
			want := []Dropped{{c.reason, 1, []string{c.place}}}
			if got := r.Dropped(); !reflect.DeepEqual(got, want) {
				t.Errorf("dropped %+v, want %+v", got, want)
			}
		})
	}
}

func TestDroppedByReason(t *testing.T) {
	text := "arrived_at,num_prefill_tokens,num_decode_tokens\n"
	for _, row := range []string{"x,1,1", "1,1,-1", "1,1,-2", "1,1,1", "1,1", "1,1,-3", "1,1,-4"} {
		text += row + "\n"
	}
	rows, r := read(t, text, Options{MaxBadShare: 1})
	want := []Dropped{
		{"num_decode_tokens: below zero", 4, []string{"f:3:5", "f:4:5", "f:7:5"}},
		{"arrived_at: not a number", 1, []string{"f:2:1"}},
		{"num_decode_tokens: missing", 1, []string{"f:6:4"}},
	}
	if got := r.Dropped(); len(rows) != 1 || !reflect.DeepEqual(got, want) {
		t.Errorf("%d rows, dropped %+v", len(rows), got)
	}
	if err := r.Check(); err != nil {
		t.Error(err)
	}
}

func TestTooManyBroken(t *testing.T) {
	file := func(good, bad int) string {
		var b strings.Builder
		b.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n")
		for i := range good + bad {
			if i%10 == 1 && bad > 0 {
				bad--
				b.WriteString("2023-11-16 18:17:03,x,1\n")
				continue
			}
			b.WriteString("2023-11-16 18:17:03,1,1\n")
		}
		return b.String()
	}
	for _, c := range []struct {
		name      string
		good, bad int
		share     float64
		ok        bool
	}{
		{"one of three", 2, 1, 0, true},
		{"two of twenty", 18, 2, 0, false},
		{"two of 200: one in a hundred", 198, 2, 0, true},
		{"three of 299", 296, 3, 0, false},
		{"three of 300", 297, 3, 0, true},
		{"three of 300 where less is borne", 297, 3, 0.005, false},
		{"ten of a hundred where more is borne", 90, 10, 0.2, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := NewReader(strings.NewReader(file(c.good, c.bad)), "f", Options{MaxBadShare: c.share})
			if err != nil {
				t.Fatal(err)
			}
			rows, err := readAll(r)
			if len(rows) != c.good {
				t.Errorf("%d rows read, want %d", len(rows), c.good)
			}
			if (err == nil) != c.ok {
				t.Fatal(err)
			}
			if err != nil {
				for _, w := range []string{fmt.Sprintf("%d of %d rows", c.bad, c.good+c.bad), `f:3:21: ContextTokens: not a number ("x")`, "f:13:21"} {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%q is not in: %v", w, err)
					}
				}
				if _, again := r.Next(); !errors.Is(again, err) {
					t.Errorf("and then: %v", again)
				}
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name, text string
		o          Options
		want       string
	}{
		{"nothing", "", Options{}, "the file is empty"},
		{"blank lines", "\n\r\n \n", Options{}, "the file is empty"},
		{"no header", "2023-11-16 18:17:03.9799600,4808,10\n", Options{}, `its first line is "2023-11-16`},
		{"an unknown header says what could be read", "a,b\n1,2\n", Options{}, "Request tokens"},
		{"a column twice", "TIMESTAMP,ContextTokens,contexttokens,GeneratedTokens\n", Options{}, "f:1:25: the header names the column"},
		{"conversations", `[{"id":"1"}]`, Options{}, "not a trace"},
		{"a whole session as one line", `{"id":"1","requests":[]}`, Options{}, "whole session"},
		{"text", `{"timestamp":1,"text_input":"hello"}`, Options{}, "carry text"},
		{"JSON of something else", `{"a":1}`, Options{}, "the keys a"},
		{"no JSON at all", "{\n{\n", Options{}, "start like JSON and are not"},
		{"a format that it is not", "a,b\n", Options{Format: Azure}, "cannot be read as azure"},
		{"a format that it is not, in JSON", `{"a":1}`, Options{Format: Azure}, "cannot be read as azure"},
		{"a block size where there are no blocks", "TIMESTAMP,ContextTokens,GeneratedTokens\n", Options{BlockTokens: 16}, "no block ids"},
		{"a block size below zero", "", Options{BlockTokens: -1}, "out of range"},
		{"a broken gzip", "\x1f\x8bxx", Options{}, "f: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := NewReader(strings.NewReader(c.text), "f", c.o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	if _, err := ParseFormat("azur"); err == nil || !strings.Contains(err.Error(), "azure, azure-lmm, burstgpt, mooncake, bailian, vidur, lengths") {
		t.Error(err)
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestFirstRowBroken(t *testing.T) {
	rows, r := read(t, `{"timestamp":0,`+"\n"+`{"timestamp":1,"input_length":1,"output_length":1}`, Options{})
	if len(rows) != 1 || rows[0].Line != 2 || r.Info().Format != Mooncake || len(r.Dropped()) != 1 {
		t.Errorf("%+v, dropped %+v", rows, r.Dropped())
	}
}

func TestCompressed(t *testing.T) {
	plain, err := os.ReadFile(filepath.Join(traces, "azure_code_2023.csv"))
	if err != nil {
		t.Fatal(err)
	}
	want, _ := read(t, string(plain), Options{})
	var gz, zst bytes.Buffer
	g := gzip.NewWriter(&gz)
	g.Write(plain)
	g.Close()
	z, err := zstd.NewWriter(&zst)
	if err != nil {
		t.Fatal(err)
	}
	z.Write(plain)
	z.Close()
	for name, b := range map[string][]byte{"gzip": gz.Bytes(), "zstd": zst.Bytes()} {
		got, r := read(t, string(b), Options{})
		if r.Info().Compression != name || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q, %d rows", name, r.Info().Compression, len(got))
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		// A small file is one block, which fails when the format is looked for.
		cut, err := NewReader(bytes.NewReader(b[:len(b)-len(b)/3]), "f", Options{})
		if err == nil {
			_, err = readAll(cut)
		}
		if err == nil || !strings.Contains(err.Error(), "cut off") {
			t.Errorf("%s, cut: %v", name, err)
		}
	}
}

func TestSpreadAndQuantum(t *testing.T) {
	rows, _, _, err := load(filepath.Join(traces, "mooncake_conversation.jsonl"), Options{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	times := func() []time.Duration {
		var at []time.Duration
		for _, r := range rows {
			at = append(at, r.At)
		}
		return at
	}
	q := Quantum(times())
	if q < 2997*ms || q > 3003*ms {
		t.Fatalf("quantum %s, want about 3 s", q)
	}
	before := slices.Clone(rows)
	Spread(rows, q, rand.New(rand.NewPCG(1, 2)))
	if got := Quantum(times()); got != 0 {
		t.Errorf("spread, the quantum is %s", got)
	}
	if !slices.IsSorted(times()) {
		t.Error("spread, the rows are not sorted")
	}
	was := map[int]time.Duration{}
	for _, r := range before {
		was[r.Line] = r.At
	}
	for _, r := range rows {
		if d := r.At - was[r.Line]; d < 0 || d >= q {
			t.Fatalf("line %d moved by %s", r.Line, d)
		}
	}
	rows, _, _, _ = load(filepath.Join(traces, "azure_conv_2023.csv"), Options{}, 0)
	if got := Quantum(times()); got != 0 {
		t.Errorf("Azure's times: quantum %s", got)
	}
}

func TestLoadTakesTheFirstRows(t *testing.T) {
	rows, info, _, err := load(filepath.Join(traces, "mooncake_arxiv.jsonl"), Options{}, 5)
	if err != nil || len(rows) != 5 || rows[0].At != 0 || info.BlockTokens != 512 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

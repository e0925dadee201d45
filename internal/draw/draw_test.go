package draw

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"testing"
)

// ulps is how far a lies from b, in units of b's last place.
func ulps(a, b float64) float64 {
	if a == b {
		return 0
	}
	return math.Abs(a-b) / (math.Nextafter(math.Abs(b), math.Inf(1)) - math.Abs(b))
}

func TestFunctionsAgreeWithMath(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		x := math.Ldexp(1+r.Float64(), r.IntN(200)-100)
		if d := ulps(Log(x), math.Log(x)); d > 3 {
			t.Fatalf("Log(%g) = %g, math has %g: %g units apart", x, Log(x), math.Log(x), d)
		}
		// Near 1 the logarithm is small and its relative error shows.
		x = 1 + (r.Float64()-0.5)/float64(int(1)<<r.IntN(40))
		if d := ulps(Log(x), math.Log(x)); d > 3 {
			t.Fatalf("Log(%g) = %g, math has %g: %g units apart", x, Log(x), math.Log(x), d)
		}
		x = (r.Float64() - 0.5) * 1400
		if d := ulps(Exp(x), math.Exp(x)); d > 3 {
			t.Fatalf("Exp(%g) = %g, math has %g: %g units apart", x, Exp(x), math.Exp(x), d)
		}
		x = r.Float64()*20 - 5
		s, c := Cycle(x)
		a := 2 * math.Pi * (x - math.Floor(x))
		if math.Abs(s-math.Sin(a)) > 2e-15 || math.Abs(c-math.Cos(a)) > 2e-15 {
			t.Fatalf("Cycle(%g) = %g, %g", x, s, c)
		}
	}
	for _, c := range []struct{ got, want float64 }{
		{Log(0), math.Inf(-1)}, {Log(1), 0}, {Exp(0), 1}, {Exp(1000), math.Inf(1)}, {Exp(-1000), 0},
		{Pow(0, 2), 0}, {Log(math.Inf(1)), math.Inf(1)}, {Log(5e-324), -744.4400719213812},
	} {
		if c.got != c.want {
			t.Errorf("got %g, want %g", c.got, c.want)
		}
	}
	if !math.IsNaN(Log(-1)) || !math.IsNaN(Exp(math.NaN())) {
		t.Error("not a number went in and a number came out")
	}
}

func TestMoments(t *testing.T) {
	const n = 200_000
	for _, c := range []struct {
		name      string
		draw      func(*rand.Rand) float64
		mean, vrn float64
	}{
		{"uniform", Uniform, 0.5, 1.0 / 12},
		{"exponential", Exponential, 1, 1},
		{"normal", Normal, 0, 1},
		{"gamma 0.1", func(r *rand.Rand) float64 { return Gamma(r, 0.1) }, 0.1, 0.1},
		{"gamma 1", func(r *rand.Rand) float64 { return Gamma(r, 1) }, 1, 1},
		{"gamma 7.5", func(r *rand.Rand) float64 { return Gamma(r, 7.5) }, 7.5, 7.5},
		{"geometric 1", func(r *rand.Rand) float64 { return float64(Geometric(r, 1)) }, 1, 0},
		{"geometric 3.2", func(r *rand.Rand) float64 { return float64(Geometric(r, 3.2)) }, 3.2, 3.2 * 2.2},
	} {
		r := Stream(7, c.name)
		var sum, sq float64
		for range n {
			x := c.draw(r)
			sum += x
			sq += x * x
		}
		mean := sum / n
		vrn := sq/n - mean*mean
		if math.Abs(mean-c.mean) > 5*math.Sqrt(c.vrn/n) {
			t.Errorf("%s: mean %g, want %g", c.name, mean, c.mean)
		}
		if math.Abs(vrn-c.vrn) > 0.05*c.vrn {
			t.Errorf("%s: variance %g, want %g", c.name, vrn, c.vrn)
		}
	}
}

// The draws themselves, as bits: the same on every processor.
func TestGoldenBits(t *testing.T) {
	h := sha256.New()
	r := Stream(42, "golden")
	for range 2000 {
		s, c := Cycle(100 * Uniform(r))
		for _, x := range []float64{
			Uniform(r), Exponential(r), Normal(r), Gamma(r, 0.3), Gamma(r, 2.5),
			Pow(Uniform(r), 1.7), float64(Geometric(r, 4)), s, c,
		} {
			binary.Write(h, binary.LittleEndian, math.Float64bits(x))
		}
	}
	const want = "5cc63dd52bd34ab446959900358dcc67b3951a6ea52d56e6ac0da49ee2e971d7"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("on %s the draws hash to\n%s, want\n%s", runtime.GOARCH, got, want)
	}
}

// An index leads to the same draws whatever was drawn before, and neighbours
// share nothing.
func TestIndexedStreams(t *testing.T) {
	x := NewIndexed(1, "lengths")
	want := x.At(5).Uint64()
	x.At(4).Uint64()
	x.Uint64()
	if got := x.At(5).Uint64(); got != want {
		t.Errorf("stream 5 began with %d, then with %d", want, got)
	}
	seen := map[uint64]bool{}
	var ones int
	for i := range int64(10_000) {
		v := x.At(i).Uint64()
		if seen[v] {
			t.Fatalf("stream %d begins like another", i)
		}
		seen[v] = true
		ones += int(v >> 63)
	}
	if ones < 4800 || ones > 5200 {
		t.Errorf("the first bit of 10,000 neighbouring streams is 1 in %d", ones)
	}
	if NewIndexed(1, "text").At(5).Uint64() == want {
		t.Error("two purposes draw the same")
	}
}

// No arm64 instruction may round a product and a sum at once in the packages
// whose numbers go into a plan.
func TestNothingFused(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles for arm64")
	}
	fused := regexp.MustCompile(`\(([^)]*/(draw|arrival|synth|workload)/[^)]*)\)\s+(FN?M(?:ADD|SUB)D?)\s`)
	for _, pkg := range []string{"draw", "arrival", "synth", "workload"} {
		cmd := exec.Command("go", "build", "-gcflags=-S", "-o", os.DevNull, "../"+pkg)
		cmd.Env = append(os.Environ(), "GOARCH=arm64", "GOOS=linux", "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%.2000s", pkg, err, out)
		}
		for _, m := range fused.FindAllSubmatch(out, -1) {
			t.Errorf("%s at %s: put the product in float64()", m[3], m[1])
		}
	}
}

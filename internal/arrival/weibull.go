package arrival

import "github.com/trueload/trueload/internal/draw"

// weibullShape solves CV² = Γ(1+2/k)/Γ(1+1/k)² − 1 for the shape k. The right
// side falls in k, so bisection on 1/k finds it.
func weibullShape(cv float64) float64 {
	target := draw.Log(1 + float64(cv*cv))
	lo, hi := 1e-4, 60.0 // 1/k, for cv far below 0.01 and far above 100
	for range 200 {
		mid := float64((lo + hi) / 2)
		if logGamma(1+float64(2*mid))-float64(2*logGamma(1+mid)) < target {
			lo = mid
		} else {
			hi = mid
		}
	}
	return 2 / (lo + hi)
}

// logGamma is ln Γ(x) for x ≥ 1, to about 14 digits, by Stirling's series after
// moving x above 15 with Γ(x+1) = x·Γ(x).
func logGamma(x float64) float64 {
	shift := 0.0
	for x < 15 {
		shift += draw.Log(x)
		x++
	}
	const halfLog2Pi = 0.918938533204672741780329736406
	z := 1 / float64(x*x)
	// 1/12 − 1/360·z + 1/1260·z² − 1/1680·z³ + 1/1188·z⁴
	s := 1.0 / 1188
	s = float64(s*z) - 1.0/1680
	s = float64(s*z) + 1.0/1260
	s = float64(s*z) - 1.0/360
	s = float64(s*z) + 1.0/12
	return float64((x-0.5)*draw.Log(x)) - x + halfLog2Pi + s/x - shift
}

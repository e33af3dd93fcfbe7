package kernel

import "math"

// ln2 in two parts. The first ends with zeros, so that its product with an exponent is exact.
const (
	ln2High = 0x1.62e42feep-01
	ln2Low  = 0x1.a39ef35793c76p-33
)

// exp returns e to the power of x. On amd64 math.Exp is infinite above 709.4 already.
func exp(x float64) float64 {
	if x > 709 && x < 710 {
		return math.Exp(x-1) * math.E
	}
	return math.Exp(x)
}

// log returns the natural logarithm. On amd64 math.Log treats all subnormal numbers as the smallest
// normal one.
func log(x float64) float64 {
	if x > 0 && x < 0x1p-1022 {
		return math.Log(x*0x1p54) - 54*math.Ln2
	}
	return math.Log(x)
}

// logTwice returns the logarithm of a positive finite number as the sum of two numbers, with about
// 20 bits more than one number has. With x = m·2^e and s = (m-1)/(m+1) it is e·ln 2 + 2(s + s³/3 +
// s⁵/5 + …), with the large terms computed in two parts.
func logTwice(x float64) (high, low float64) {
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	f, g := m-1, 1+m
	gLow := m - (g - 1)
	s := f / g
	sLow := (math.FMA(-s, g, f) - s*gLow) / g

	q := s * s
	qLow := math.FMA(s, s, -q) + 2*s*sLow
	const third, thirdLow = 0x1.5555555555555p-2, 0x1.5555555555555p-56
	var rest float64 // the series after s³/3, over s⁵
	for k := 25.0; k >= 5; k -= 2 {
		rest = rest*q + 1/k
	}
	p := q * third
	pLow := math.FMA(q, third, -p) + q*thirdLow + qLow*third + q*q*rest
	u := s * p
	uLow := math.FMA(s, p, -u) + s*pLow + sLow*p

	n := float64(e)
	high, low = twoSum(n*ln2High, 2*s)
	high, more := twoSum(high, 2*u)
	return twoSum(high, low+more+2*sLow+2*uLow+n*ln2Low)
}

// twoSum returns a+b, rounded, and the rounding error (Knuth).
func twoSum(a, b float64) (sum, rest float64) {
	sum = a + b
	t := sum - a
	return sum, (a - (sum - t)) + (b - t)
}

// pow returns x to the power of y, with an error of at most two units in the last place where
// math.Pow has hundreds.
func pow(x, y float64) float64 {
	switch {
	case y == 1:
		return x
	case y == 2:
		return x * x
	case x == 0 || y == 0 || math.IsInf(x, 0) || math.IsInf(y, 0) || x != x || y != y:
		return math.Pow(x, y)
	}
	sign := 1.0
	if x < 0 {
		if y != math.Trunc(y) {
			return math.NaN()
		}
		sign = math.Pow(-1, y)
	}
	high, low := logTwice(math.Abs(x))
	p := y * high
	e := exp(p)
	if e == 0 || math.IsInf(e, 0) {
		return sign * e
	}
	return sign * (e + e*(math.FMA(y, high, -p)+y*low))
}

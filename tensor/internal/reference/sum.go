package reference

import "math"

// Sum is a sum with about twice the digits of float64: the rounding error of each addition is added
// separately. Its zero value is 0.
type Sum struct {
	high, low     float64
	size          float64
	nan, pos, neg bool
}

// Add adds v.
func (s *Sum) Add(v float64) {
	switch {
	case math.IsNaN(v):
		s.nan = true
	case math.IsInf(v, 1):
		s.pos = true
	case math.IsInf(v, -1):
		s.neg = true
	default:
		t := s.high + v
		back := t - s.high
		s.low += (s.high - (t - back)) + (v - back)
		s.high = t
		s.size += math.Abs(v)
	}
}

// AddProduct adds a*b, including the digits that the float64 product loses.
func (s *Sum) AddProduct(a, b float64) {
	p := a * b
	if math.IsInf(p, 0) && !math.IsInf(a, 0) && !math.IsInf(b, 0) {
		s.size = math.Inf(1) // not infinite, but more than float64 can hold
		return
	}
	s.Add(p)
	if rest := math.FMA(a, b, -p); !math.IsNaN(rest) && !math.IsInf(p, 0) {
		s.low += rest
	}
}

// Value returns the sum.
func (s *Sum) Value() float64 {
	switch {
	case s.nan || s.pos && s.neg:
		return math.NaN()
	case s.pos:
		return math.Inf(1)
	case s.neg:
		return math.Inf(-1)
	}
	return s.high + s.low
}

// Size returns the sum of the magnitudes.
func (s *Sum) Size() float64 { return s.size }

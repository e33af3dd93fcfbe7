package reference

import "math"

// Sum is a sum of many numbers with about twice float64's digits: what each addition rounds off is added apart. Its
// zero value is 0.
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

// AddProduct adds a*b, with the digits that the product of two float64 loses.
func (s *Sum) AddProduct(a, b float64) {
	p := a * b
	if math.IsInf(p, 0) && !math.IsInf(a, 0) && !math.IsInf(b, 0) {
		s.size = math.Inf(1) // no infinity, but more than float64 holds
		return
	}
	s.Add(p)
	if rest := math.FMA(a, b, -p); !math.IsNaN(rest) && !math.IsInf(p, 0) {
		s.low += rest
	}
}

// Value is the sum.
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

// Size is the sum of the magnitudes.
func (s *Sum) Size() float64 { return s.size }

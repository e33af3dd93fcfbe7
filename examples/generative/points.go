package main

import (
	"math"
	"math/rand/v2"
)

// samples is the number of points that are compared.
const samples = 1000

// points draws n points of eight clusters on a circle of radius 1, as x, y, x, y, …. A cluster has
// deviation 0.1.
func points(r *rand.Rand, n int) (xy []float64) {
	for range n {
		y, x := math.Sincos(2 * math.Pi * float64(r.IntN(8)) / 8)
		xy = append(xy, x+0.1*r.NormFloat64(), y+0.1*r.NormFloat64())
	}
	return xy
}

// matched draws n points of the normal distribution with the same mean and covariance.
func matched(r *rand.Rand, n int) (xy []float64) {
	for range 2 * n {
		xy = append(xy, math.Sqrt(0.5+0.01)*r.NormFloat64())
	}
	return xy
}

// energy returns the energy distance of two sets of points (Székely and Rizzo, 2013). It is 0 for
// equal distributions.
func energy(a, b []float64) float64 {
	mean := func(a, b []float64) (sum float64) {
		for i := 0; i < len(a); i += 2 {
			for j := 0; j < len(b); j += 2 {
				sum += math.Hypot(a[i]-b[j], a[i+1]-b[j+1])
			}
		}
		return sum / float64(len(a)/2) / float64(len(b)/2)
	}
	return 2*mean(a, b) - mean(a, a) - mean(b, b)
}

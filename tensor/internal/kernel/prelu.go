package kernel

import "github.com/cistern-ml/cistern/tensor/backend/plan"

// PReLU sets y to x where x is positive, and elsewhere to x times the weight of its channel.
func PReLU[T Float](y, x, weight []T, c plan.Channels) {
	eachChannel(len(y), c, func(lo, hi, channel int) {
		w := weight[channel]
		for i, v := range x[lo:hi] {
			if !(v > 0) {
				v *= w
			}
			y[lo+i] = v
		}
	})
}

// PReLUGrad sets dx, which may be dy, to the gradient of x.
func PReLUGrad[T Float](dx, dy, x, weight []T, c plan.Channels) {
	eachChannel(len(dx), c, func(lo, hi, channel int) {
		w := weight[channel]
		for i, v := range x[lo:hi] {
			g := dy[lo+i]
			if !(v > 0) {
				g *= w
			}
			dx[lo+i] = g
		}
	})
}

// eachChannel calls f concurrently for parts of n elements, each part within one channel.
func eachChannel(n int, c plan.Channels, f func(lo, hi, channel int)) {
	split(n, grainCheap, func(lo, hi int) {
		for lo < hi {
			row := lo / c.Inner
			end := min(hi, (row+1)*c.Inner)
			f(lo, end, row%c.Channels)
			lo = end
		}
	})
}

// PReLUWeightGrad sets dweight to the gradient of the weights, summed in float64.
func PReLUWeightGrad[T Float](dweight, dy, x []T, c plan.Channels) {
	rows := len(x) / max(1, c.Channels*c.Inner)
	split(c.Channels, max(1, grainCheap/4/max(1, rows*c.Inner)), func(lo, hi int) {
		for channel := lo; channel < hi; channel++ {
			sum := 0.0
			for r := range rows {
				at := (r*c.Channels + channel) * c.Inner
				for i, v := range x[at:][:c.Inner] {
					if !(v > 0) {
						sum += float64(v) * float64(dy[at+i])
					}
				}
			}
			dweight[channel] = T(sum)
		}
	})
}

package reference

import "math"

// PReLU returns x where it is positive, and elsewhere x times the weight of its channel.
func PReLU(x, weight Array) Result {
	return weighed(x, x, weight)
}

// PReLUGrad returns the gradient of x.
func PReLUGrad(dy, x, weight Array) Result { return weighed(dy, x, weight) }

// weighed returns v, times the weight where x is not positive.
func weighed(v, x, weight Array) Result {
	r := newResult(x.Shape)
	each(x.Shape, func(i int, index []int) {
		r.Data[i] = v.Data[i]
		if x.Data[i] <= 0 || math.IsNaN(x.Data[i]) {
			r.Data[i] *= weight.Data[channel(index, len(weight.Data))]
		}
		r.Size[i] = math.Abs(r.Data[i])
	})
	return r
}

// channel returns the number of an element's weight.
func channel(index []int, weights int) int {
	if weights == 1 {
		return 0
	}
	return index[1]
}

// PReLUWeightGrad returns the gradient of the weights.
func PReLUWeightGrad(dy, x Array, weights int) Result {
	sums := make([]Sum, weights)
	each(x.Shape, func(i int, index []int) {
		if x.Data[i] <= 0 || math.IsNaN(x.Data[i]) {
			sums[channel(index, weights)].AddProduct(x.Data[i], dy.Data[i])
		}
	})
	return resultOf([]int{weights}, sums)
}

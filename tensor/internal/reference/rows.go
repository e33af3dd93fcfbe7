package reference

import "math"

// rows calls f with the number and the elements of every row, which is along the last dimension.
func rows(x Array, f func(i int, row []float64)) {
	cols := x.Shape[len(x.Shape)-1]
	if cols == 0 {
		return
	}
	for i := range len(x.Data) / cols {
		f(i, x.Data[i*cols:(i+1)*cols])
	}
}

// exps returns the greatest number of a row, and the sum of all exponentials relative to it. A NaN
// makes the sum NaN.
func exps(row []float64) (top, sum float64) {
	top = math.Inf(-1)
	for _, v := range row {
		if v > top {
			top = v
		}
	}
	var s Sum
	for _, v := range row {
		s.Add(math.Exp(v - top))
	}
	return top, s.Value()
}

// Softmax returns the softmax of every row.
func Softmax(x Array) Result {
	r := newResult(x.Shape)
	rows(x, func(i int, row []float64) {
		top, sum := exps(row)
		for j, v := range row {
			at := i*len(row) + j
			r.Data[at] = math.Exp(v-top) / sum
			r.Size[at] = r.Data[at]
		}
	})
	return r
}

// SoftmaxGrad returns y(dy - Σ dy·y) for every row.
func SoftmaxGrad(dy, y Array) Result {
	r := newResult(y.Shape)
	rows(y, func(i int, row []float64) {
		var sum Sum
		for j, v := range row {
			sum.AddProduct(dy.Data[i*len(row)+j], v)
		}
		for j, v := range row {
			at := i*len(row) + j
			r.Data[at] = v * (dy.Data[at] - sum.Value())
			r.Size[at] = math.Abs(v) * (math.Abs(dy.Data[at]) + sum.Size())
		}
	})
	return r
}

// ArgMax returns the position of the first NaN of every row, or of the first of its greatest
// elements if there is no NaN.
func ArgMax(x Array) []int32 {
	out := []int32{}
	rows(x, func(_ int, row []float64) {
		greatest := math.Inf(-1)
		for _, v := range row {
			if math.IsNaN(v) || v > greatest {
				greatest = v
			}
			if math.IsNaN(v) {
				break
			}
		}
		for j, v := range row {
			if v == greatest || math.IsNaN(v) && math.IsNaN(greatest) {
				out = append(out, int32(j))
				break
			}
		}
	})
	return out
}

// CrossEntropy returns the mean over rows of -log softmax(row)[label]. It is NaN if there are no
// rows, or a label is not a class.
func CrossEntropy(logits Array, labels []int32) Result {
	r := newResult(nil)
	var sum, size Sum
	for i, label := range labels {
		cols := logits.Shape[1]
		if label < 0 || int(label) >= cols {
			sum.Add(math.NaN())
			continue
		}
		row := logits.Data[i*cols : (i+1)*cols]
		top, e := exps(row)
		sum.Add((top - row[label]) + math.Log(e))
		size.Add(top - row[label] + math.Log(e) + 1)
	}
	n := float64(len(labels))
	r.Data[0], r.Size[0] = sum.Value()/n, size.Value()/n
	return r
}

// CrossEntropyGrad returns dloss(softmax(row) - onehot(label))/n, and 0 for rows whose label is not
// a class.
func CrossEntropyGrad(logits Array, labels []int32, dloss float64) Result {
	r := newResult(logits.Shape)
	scale := dloss / float64(len(labels))
	for i, label := range labels {
		cols := logits.Shape[1]
		if label < 0 || int(label) >= cols {
			continue
		}
		row := logits.Data[i*cols : (i+1)*cols]
		top, e := exps(row)
		for j, v := range row {
			p, own := math.Exp(v-top)/e, 0.0
			if j == int(label) {
				own = 1
			}
			r.Data[i*cols+j] = scale * (p - own)
			r.Size[i*cols+j] = math.Abs(scale) * (p + own)
		}
	}
	return r
}

// LogSoftmax returns the logarithm of the softmax of every row.
func LogSoftmax(x Array) Result {
	r := newResult(x.Shape)
	rows(x, func(i int, row []float64) {
		top, sum := exps(row)
		for j, v := range row {
			at := i*len(row) + j
			r.Data[at] = v - top - math.Log(sum)
			r.Size[at] = math.Abs(v-top) + math.Log(sum) + 1
		}
	})
	return r
}

// LogSoftmaxGrad returns dy - exp(y)·Σ dy for every row.
func LogSoftmaxGrad(dy, y Array) Result {
	r := newResult(y.Shape)
	rows(y, func(i int, row []float64) {
		var sum Sum
		for j := range row {
			sum.Add(dy.Data[i*len(row)+j])
		}
		for j, v := range row {
			at := i*len(row) + j
			p := Exp(v)
			r.Data[at] = dy.Data[at] - p*sum.Value()
			r.Size[at] = math.Abs(dy.Data[at]) + p*sum.Size()
		}
	})
	return r
}

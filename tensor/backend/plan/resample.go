package plan

import "math"

// Resample is the plan of a resampling of planes, of their rows and of their columns: each element
// of a result is a mean of at most two by two neighbours.
type Resample struct {
	Planes int
	Axes   [2]Axis // height and width
}

// Sampling is where the elements of a result lie in what is sampled.
type Sampling int

const (
	Nearest   Sampling = iota // element o is the one at the whole part of o*Step, in float32 as in PyTorch
	Linear                    // element o lies at o*Step + Shift, and 0 at least
	Reflect                   // element o lies at o + Shift, mirrored at the first and the last element
	Replicate                 // element o lies at o + Shift, and outside is the last element before
)

// Axis is the resampling of one dimension.
type Axis struct {
	Sampling    Sampling
	In, Out     int
	Step, Shift float64
}

// Tap is what an element is made of: the share Next of the element At+1, if it is not 0, and the
// rest of the element At.
type Tap struct {
	At   int
	Next float64
}

// Tap is what element o of the result is made of.
func (a *Axis) Tap(o int) Tap {
	last := a.In - 1
	switch a.Sampling {
	case Nearest:
		return Tap{At: min(int(float32(o)*float32(a.Step)), last)}
	case Linear:
		at := max(0, float64(float64(o)*a.Step)+a.Shift) // without a fused multiply-add, as on GPUs
		i := int(min(at, float64(last)))
		if i == last {
			return Tap{At: last}
		}
		return Tap{i, at - float64(i)}
	}
	i := o + int(a.Shift)
	if a.Sampling == Replicate {
		return Tap{At: min(max(0, i), last)}
	}
	i = max(i, -i)
	return Tap{At: min(i, 2*last-i)}
}

// Share is the share of element i.
func (t Tap) Share(i int) float64 {
	switch i - t.At {
	case 0:
		return 1 - t.Next
	case 1:
		return t.Next
	}
	return 0
}

// Readers returns the range of the elements of the result that may be made of element i.
func (a *Axis) Readers(i int) (from, to int) {
	last, here := a.In-1, i-int(a.Shift)
	switch {
	case a.Sampling == Reflect:
		from, to = here, here+1
		if left := here - 2*i; left >= 0 {
			from = left
		}
		if right := here + 2*(last-i); right < a.Out {
			to = right + 1
		}
	case a.Sampling == Replicate:
		from, to = here, here+1
	case a.Step > 0:
		spare := 1 + a.Out>>22 // for what the float32 of Nearest is off
		from = int(math.Floor((float64(i-int(a.Sampling))-a.Shift)/a.Step)) - spare
		to = int(math.Ceil((float64(i+1)-a.Shift)/a.Step)) + spare
	default:
		return 0, a.Out
	}
	if i == 0 && a.Sampling != Reflect {
		from = 0
	}
	if i == last && a.Sampling != Reflect {
		to = a.Out
	}
	return min(max(0, from), a.Out), min(max(0, to), a.Out)
}

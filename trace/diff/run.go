package diff

import "errors"

// dimension is an index of a run's sums.
type dimension int

const (
	byCategory dimension = iota
	byModule
	byLine
	byStep
	dimensions
)

func (d dimension) String() string { return [...]string{"category", "module", "line", "step"}[d] }

// key is a holder. Of a step, line is the number.
type key struct {
	name, file string
	line       int64
}

// run is the memory of one device or rank in a file.
type run struct {
	name                string
	place               int   // the rank, or the device's position in the file
	allocated, reserved int64 // peaks; a reserved of -1: unknown
	sums                [dimensions]map[key]Amount
	lacks               [dimensions]string // the reason why there are no sums; "": there are
	notes               []string
}

// most is the largest number of bytes that a page's numbers represent exactly.
const most = 1 << 53

var errFigures = errors.New("a figure or a sum is negative or above 2^53: no device has so much memory")

// add adds to the sum of a holder.
func (r *run) add(d dimension, k key, bytes, blocks int64) error {
	if r.sums[d] == nil {
		r.sums[d] = make(map[key]Amount)
	}
	a := r.sums[d][k]
	if !possible(bytes, blocks) || !possible(a.Bytes+bytes, a.Blocks+blocks) {
		return errFigures
	}
	r.sums[d][k] = Amount{a.Bytes + bytes, a.Blocks + blocks}
	return nil
}

// step adds the peak of a step; of several with one number the highest counts.
func (r *run) step(number, peak int64) error {
	k := key{line: number}
	if peak > r.sums[byStep][k].Bytes {
		delete(r.sums[byStep], k)
		return r.add(byStep, k, peak, 0)
	}
	return r.add(byStep, k, 0, 0)
}

// possible reports whether a device can have such figures.
func possible(figures ...int64) bool {
	for _, f := range figures {
		if f < 0 || f > most {
			return false
		}
	}
	return true
}

package tensor

import (
	"fmt"
	"io"
)

// String returns dtype, shape and device, such as "float32 (128, 10) on host", without reading the
// elements.
func (t *Tensor) String() string {
	if t.none() {
		return "no tensor"
	}
	s := fmt.Sprintf("%v %v on %s", t.dtype, t.shape, t.rt.stream.Device().Name())
	if t.Released() {
		s += ", released"
	}
	return s
}

// Format writes String for every verb, because device memory must be read before it can be printed
// ([ToSlice]).
func (t *Tensor) Format(f fmt.State, _ rune) { io.WriteString(f, t.String()) }

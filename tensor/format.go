package tensor

import (
	"fmt"
	"io"
)

// String is dtype, shape and device, such as "float32 (128, 10) on host". It never touches the elements.
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

// Format writes String for every verb: device memory can't be printed, it must be read first ([ToSlice]).
func (t *Tensor) Format(f fmt.State, _ rune) { io.WriteString(f, t.String()) }

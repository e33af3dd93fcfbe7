package torchfile

import (
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/autograd/internal/weights"
)

// view is a tensor: elements of a storage from offset on, with strides in elements.
type view struct {
	from           *storage
	offset         int
	shape, strides []int
	elements, span int // span: distance from the first to after the last element
}

// newView checks that a tensor lies within its storage.
func newView(s *storage, offset int, shape, strides []int) (*view, error) {
	wrong := func() error {
		return formatError("a tensor of shape %v and strides %v from element %d on: its storage has %d", shape, strides, offset, s.n)
	}
	if len(shape) != len(strides) || offset < 0 || offset > s.n {
		return nil, wrong()
	}
	v := &view{from: s, offset: offset, shape: shape, strides: strides, elements: 1, span: 1}
	for d, n := range shape {
		if n < 0 || strides[d] < 0 {
			return nil, wrong()
		}
		if n == 0 {
			v.elements, v.span = 0, 0
		}
	}
	if v.elements == 0 {
		return v, nil
	}
	for d, n := range shape {
		if v.elements > math.MaxInt/s.bytes/n {
			return nil, wrong()
		}
		v.elements *= n
		if n > 1 && strides[d] > (s.n-v.span)/(n-1) {
			return nil, wrong()
		}
		v.span += (n - 1) * strides[d]
	}
	if v.span > s.n-offset {
		return nil, wrong()
	}
	return v, nil
}

func (v *view) bytes() int64 { return int64(v.elements) * int64(v.from.bytes) }

// contiguous reports whether the elements are stored in row-major order without gaps.
func (v *view) contiguous() bool {
	stride := 1
	for d := len(v.shape) - 1; d >= 0; d-- {
		if v.shape[d] > 1 && v.strides[d] != stride {
			return false
		}
		stride *= v.shape[d]
	}
	return true
}

// reader reads the elements, row-major and little-endian.
func (v *view) reader(swapped bool) (io.Reader, error) {
	size := v.from.bytes
	section := io.NewSectionReader(v.from.data, int64(v.offset)*int64(size), int64(v.span)*int64(size))
	if v.elements == 0 || v.contiguous() && !(swapped && size > 1) {
		return section, nil
	}
	data := make([]byte, section.Size())
	if _, err := io.ReadFull(section, data); err != nil {
		return nil, fmt.Errorf("reading its storage: %w", err)
	}
	if swapped {
		for element := range slices.Chunk(data, size) {
			slices.Reverse(element)
		}
	}
	return weights.Gather(data, size, v.shape, v.strides), nil
}

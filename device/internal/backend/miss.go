package backend

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// Miss describes why a range can't be named.
type Miss struct {
	Live   bool  // the range begins in live memory
	Offset int64 // where in that memory it begins
	Size   int64 // size of that memory, with adjacent mappings
}

// Negative returns the error of a range with a negative size.
func (s Self) Negative(op string, bytes int64) error {
	return s.Invalid(op, 0, "the range has %d bytes; sizes are not negative", bytes)
}

// Missed returns the error of a range that can't be named: bytes bytes at addr. If onHost is set it
// had to be pinned or registered memory.
func (s Self) Missed(op string, m Miss, addr uint64, bytes int64, onHost bool) error {
	left := m.Size - m.Offset
	switch {
	case onHost:
		e := &device.Error{Op: op, Device: string(s), Bytes: bytes, Code: device.CodeInvalidValue, Err: device.ErrNotPinned,
			Detail: "use memory from AllocPinned, or Register the slice first"}
		if m.Live {
			e.Detail = fmt.Sprintf("only its first %d bytes are", left)
		}
		return e
	case m.Live:
		return s.Invalid(op, bytes, "the range of %d bytes begins %d bytes into an allocation of %d: %d bytes too many",
			bytes, m.Offset, m.Size, bytes-left)
	case addr == 0:
		return s.Invalid(op, bytes, "the address is null")
	default:
		return s.Invalid(op, bytes, "the range of %d bytes begins in no live allocation", bytes)
	}
}

// Package steplines reads the profiles of steps that a program has written as lines of JSON.
package steplines

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/trace"
)

// Bytes for a reader's buffer, for each byte of a line (the line's buffer, and its strings), and
// for each element of a list in a line: twice a trace.StepCollective. The bytes for a line are
// refunded after its use.
const (
	BufferCost  = 16 << 10
	byteCost    = 8
	elementCost = 80
)

// Units of work, besides one for each byte that is read.
const (
	lineWork    = 50
	elementWork = 24 // for each element of a list in a line
)

// Reader reads a file line by line. Its methods must not be called concurrently.
type Reader struct {
	in     *bufio.Reader
	budget *budget.Budget
	line   int  // the number of the last line that was read
	cut    bool // the file ends in the middle of this line
}

// New returns a reader of a file from its beginning. The budget is charged [BufferCost], and for
// each line.
func New(r io.Reader, b *budget.Budget) (*Reader, error) {
	if err := b.Memory(BufferCost); err != nil {
		return nil, err
	}
	return &Reader{in: bufio.NewReaderSize(r, BufferCost), budget: b}, nil
}

// Line returns the number of the last line that was read, from 1 on.
func (r *Reader) Line() int { return r.line }

// Cut reports whether the file ends in the middle of the last line, as if its writer was killed.
func (r *Reader) Cut() bool { return r.cut }

// profile is the JSON of a line. Replays are skipped, because their elements would be the largest.
type profile struct {
	trace.StepProfile
	Number  *int64  `json:"step"`
	Replays ignored `json:"replays"`
}

type ignored struct{}

func (*ignored) UnmarshalJSON([]byte) error { return nil }

// Next reads a line, and calls use with its profile, unless the line is blank or cut. It returns
// false after the last line. A line that is not a profile is an error that wraps
// [device.ErrInvalid].
func (r *Reader) Next(use func(*trace.StepProfile) error) (more bool, err error) {
	r.line++
	line, err := r.next()
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	more = err == nil
	elements := int64(bytes.Count(line, []byte{','}) + bytes.Count(line, []byte{'['})) // at most
	if err := r.budget.Work(lineWork + elements*elementWork); err != nil {
		return false, err
	}
	if err := r.budget.Memory(elements * elementCost); err != nil {
		return false, err
	}
	if err := r.decode(line, more, use); err != nil {
		return false, err
	}
	return more, r.budget.Memory(-elements*elementCost - byteCost*int64(len(line)))
}

// decode uses a line. whole reports whether the line has an end.
func (r *Reader) decode(line []byte, whole bool, use func(*trace.StepProfile) error) error {
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	var p profile
	if err := json.Unmarshal(line, &p); err != nil {
		if !whole {
			r.cut = true
			return nil
		}
		return fmt.Errorf("%w: %.200s", device.ErrInvalid, err) // it may quote the line
	}
	if p.Number == nil {
		return fmt.Errorf("%w: there is no step", device.ErrInvalid)
	}
	p.Step = *p.Number
	if err := use(&p.StepProfile); err != nil {
		return fmt.Errorf("step %d: %w", p.Step, err)
	}
	return nil
}

// next reads a line. The last line is returned with io.EOF.
func (r *Reader) next() (line []byte, err error) {
	for {
		part, err := r.in.ReadSlice('\n')
		r.budget.Grow(int64(len(part)))
		if err := r.budget.Work(int64(len(part))); err != nil {
			return nil, err
		}
		if err := r.budget.Memory(byteCost * int64(len(part))); err != nil {
			return nil, err
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

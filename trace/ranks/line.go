package ranks

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/trace"
)

// source is a file that is being read.
type source struct {
	name string
	in   *bufio.Reader
	line int  // the number of the last line that was read
	cut  bool // the file ends in the middle of this line
}

func newSource(f File) *source { return &source{name: f.Name, in: bufio.NewReaderSize(f, bufferCost)} }

// profile is the JSON of a line. Replays are not reported; their elements would be the largest.
type profile struct {
	trace.StepProfile
	Replays ignored `json:"replays"`
}

type ignored struct{}

func (*ignored) UnmarshalJSON([]byte) error { return nil }

// merge merges the next line. It returns false after the last one.
func (s *source) merge(m *Merger) (more bool, err error) {
	s.line++
	line, err := s.next(m.budget)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	more = err == nil
	elements := int64(bytes.Count(line, []byte{','}) + bytes.Count(line, []byte{'['})) // at most
	if err := m.budget.Work(lineWork + elements*elementWork); err != nil {
		return false, err
	}
	if err := m.budget.Memory(elements * elementCost); err != nil {
		return false, err
	}
	if err := s.decode(line, more, m); err != nil {
		return false, err
	}
	return more, m.budget.Memory(-elements*elementCost - byteCost*int64(len(line)))
}

// decode merges a line. whole reports whether the line has an end.
func (s *source) decode(line []byte, whole bool, m *Merger) error {
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	var p profile
	if err := json.Unmarshal(line, &p); err != nil {
		if !whole {
			s.cut = true
			return nil
		}
		return fmt.Errorf("%w: %.200s", ErrInvalid, err) // it may quote the line
	}
	if err := m.add(&p.StepProfile); err != nil {
		return fmt.Errorf("step %d: %w", p.Step, err)
	}
	return nil
}

// next reads a line. The last line comes with io.EOF.
func (s *source) next(b *budget.Budget) (line []byte, err error) {
	for {
		part, err := s.in.ReadSlice('\n')
		b.Grow(int64(len(part)))
		if err := b.Work(int64(len(part))); err != nil {
			return nil, err
		}
		if err := b.Memory(byteCost * int64(len(part))); err != nil {
			return nil, err
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

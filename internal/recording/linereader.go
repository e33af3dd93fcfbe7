package recording

import (
	"bufio"
	"bytes"
	"errors"

	"github.com/cistern-ml/cistern/internal/budget"
)

// lineReader reads lines, and charges for them and their decoded values.
type lineReader struct {
	in     *bufio.Reader
	budget *budget.Budget
	held   int64 // bytes charged for the previous line
}

// line returns the next line without its end, valid until the next call. An unterminated last line
// comes with io.EOF. A line that begins with a brace may be long.
func (r *lineReader) line() ([]byte, error) {
	_ = r.budget.Memory(-r.held)
	r.held = 0
	var line []byte
	for {
		part, err := r.in.ReadSlice('\n')
		switch {
		case line == nil && err == nil && len(part) <= maxLine:
			return bytes.TrimRight(part, "\r\n"), nil
		case line == nil && len(part) > 0 && part[0] != '{' && len(part) > maxLine:
			return nil, errTooMuch("bytes in an entry", maxLine)
		}
		cost := 3*int64(len(part)) + decoded(part) // a growing slice exists twice
		r.held += cost
		if err := r.budget.Memory(cost); err != nil {
			return nil, err
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimRight(line, "\r\n"), err
		}
	}
}

// decoded returns the most memory that a part of a long line needs when decoded, in bytes: each
// brace may begin a segment, each bracket a block, and each colon ends a key.
func decoded(part []byte) int64 {
	return segmentMemory*int64(bytes.Count(part, []byte{'{'})) + blockMemory*int64(bytes.Count(part, []byte{'['})) +
		fieldMemory*int64(bytes.Count(part, []byte{':'}))
}

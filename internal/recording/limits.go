package recording

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/cistern-ml/cistern/internal/budget"
)

// Options are the options of [Read].
type Options struct {
	budget.Limits
	// Details asks for times, labels and stacks, too.
	Details bool
}

// Bounds of what a recording may contain. No program writes more.
const (
	maxDepth   = 64            // of nested values
	maxString  = 1 << 20       // bytes of a string
	maxDigits  = 64            // of a number in JSON
	maxNotes   = 10            // of one kind
	maxName    = 4 << 10       // bytes of a function, a file or the like
	maxLine    = 4 << 10       // bytes of an entry in JSON lines
	maxKeys    = 512           // of a dict in a pickle: each new one is compared with all others
	maxEntries = math.MaxInt32 // steps number entries with 32 bits
)

// What is charged for the values of a file, in bytes of memory: about twice their size, because lists
// grow by copying.
const (
	entryMemory      = 165
	detailMemory     = 60
	segmentMemory    = 250
	blockMemory      = 130
	fieldMemory      = 64  // of an object
	definitionMemory = 200 // and of a mark
	stepMemory       = 60  // of a program
	liveMemory       = 150 // of a block while a program is made
)

// entryWork is the work of an entry on its way from the file into a program, in units of package budget,
// beside the reading of its bytes.
const entryWork = 15

// lineWork is the work of decoding a line of JSON, beside its bytes.
const lineWork = 100

// tokenWork is the work of a token of JSON, beside its bytes.
const tokenWork = 15

// What a recording costs beside its entries: a file may have one for each of very many devices.
const (
	recordingMemory = 2000
	recordingWork   = 2000
)

// lookupWork is the work of reading the fields of a dict, beside 4 units for each of its keys.
const lookupWork = 50

// errTooMuch is an error about a value that no program writes.
func errTooMuch(what string, most int) error {
	return fmt.Errorf("more than %d %s: no recording has so many", most, what)
}

// checkStrings is an error if one of them is too long.
func checkStrings(list ...string) error {
	for _, text := range list {
		if len(text) > maxString {
			return errTooMuch("bytes in a string", maxString)
		}
	}
	return nil
}

// source counts the bytes of a file before it is decompressed.
type source struct {
	io.Reader
	bytes int64
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.bytes += int64(n)
	return n, err
}

// plain charges the bytes that are read after decompression.
type plain struct {
	io.Reader
	of             *source
	bytes, counted int64 // so many of the bytes raised the budget
	budget         *budget.Budget
}

func (p *plain) Read(to []byte) (int, error) {
	n, err := p.Reader.Read(to)
	p.bytes += int64(n)
	now := min(p.bytes, p.of.bytes*budget.MaxRatio)
	p.budget.Grow(now - p.counted)
	p.counted = now
	if err := p.budget.Work(int64(n)); err != nil {
		return 0, err
	}
	return n, err
}

// lineReader reads lines, and charges them and what they are decoded to.
type lineReader struct {
	in     *bufio.Reader
	budget *budget.Budget
	held   int64 // bytes charged for the line before
}

// line returns the next line without its end. The last one comes with io.EOF, if nothing ends it. It is
// valid until the next call. A line that begins with a brace may be long.
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
		cost := 3*int64(len(part)) + decoded(part) // a slice that grows is there twice
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

// decoded is the most memory that a part of a long line needs when it is decoded, in bytes: each brace
// may begin a segment, each bracket a block, and each colon ends a key.
func decoded(part []byte) int64 {
	return segmentMemory*int64(bytes.Count(part, []byte{'{'})) + blockMemory*int64(bytes.Count(part, []byte{'['})) +
		fieldMemory*int64(bytes.Count(part, []byte{':'}))
}

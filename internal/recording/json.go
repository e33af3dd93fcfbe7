package recording

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"regexp"
	"strconv"

	"github.com/nlpodyssey/gopickle/types"

	"github.com/cistern-ml/cistern/internal/budget"
)

// A snapshot in JSON is decoded to the same values as its pickle, except that tuples are lists.

// onlyLines and onlyDumps are the top-level keys that exist in only one of the two JSON forms.
var (
	onlyLines = map[string]bool{"format": true, "torch": true, "conf": true, "total_memory": true, "limit": true, "stats": true, "pools": true}
	onlyDumps = map[string]bool{"device_traces": true, "allocator_settings": true, "external_annotations": true, "host_traces": true}
)

// peeked is the number of bytes that isDump inspects.
const peeked = 64 << 10

// firstBlock is the first block of a segment: a list of values in JSON lines, and a dict in a dump.
var firstBlock = regexp.MustCompile(`"blocks"\s*:\s*\[\s*([\[{])`)

// isDump reports whether the file is a snapshot written as JSON, as opposed to JSON lines.
func isDump(in *bufio.Reader) bool {
	start, _ := in.Peek(peeked)
	d := json.NewDecoder(bytes.NewReader(start))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return t == json.Delim('[') // the form of memory_snapshot
	}
	seen := false // whether segments were seen
	for d.More() {
		t, err := d.Token()
		key, _ := t.(string)
		switch {
		case err != nil || onlyLines[key]:
			return false
		case onlyDumps[key]:
			return true
		}
		if key == "segments" && !seen {
			seen = true
			if m := firstBlock.FindSubmatch(start[d.InputOffset():]); m != nil {
				return m[1][0] == '{'
			}
		}
		var skipped json.RawMessage
		if d.Decode(&skipped) != nil {
			return false
		}
	}
	return false
}

// readDump reads a snapshot written as JSON.
func readDump(in *bufio.Reader, o Options, b *budget.Budget) ([]*Recording, error) {
	s := newSnapshotReader(in, o, b)
	tokens := &tokenSource{Reader: in}
	d := &dumpReader{s, json.NewDecoder(tokens), tokens}
	d.json.UseNumber()
	value, err := d.value(0)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, budget.ErrExceeded) {
			return nil, truncated(err)
		}
		return nil, fmt.Errorf("the JSON at byte %d: %w", d.json.InputOffset(), err)
	}
	if l, ok := value.(*types.List); ok { // the form of memory_snapshot
		value = &types.Dict{{Key: "segments", Value: l}}
	}
	return s.recordings(value)
}

// dumpReader decodes JSON values. Like those of a pickle, entries are shrunk as soon as they are
// read.
type dumpReader struct {
	*snapshotReader
	json   *json.Decoder
	source *tokenSource
}

// tokenSource bounds the bytes of one token, because a decoder holds it in memory.
type tokenSource struct {
	io.Reader
	since int // bytes since the last token
}

func (s *tokenSource) Read(p []byte) (int, error) {
	if s.since > 2*maxString {
		return 0, errTooMuch("bytes in a string", maxString)
	}
	n, err := s.Reader.Read(p)
	s.since += n
	return n, err
}

// value reads the next value.
func (d *dumpReader) value(depth int) (any, error) {
	t, err := d.json.Token()
	if err != nil {
		return nil, err
	}
	d.source.since = 0
	if err := d.budget.Work(tokenWork); err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		if depth == maxDepth {
			return nil, errTooMuch("nested values", maxDepth)
		}
		if err := d.budget.Memory(int64(container)); err != nil {
			return nil, err
		}
		if t == '[' {
			return d.list(depth + 1)
		}
		return d.dict(depth + 1)
	case json.Number:
		if len(t) > maxDigits {
			return nil, errTooMuch("digits in a number", maxDigits)
		}
		return number(t), d.budget.Memory(int64(scalar))
	case string:
		if len(t) > maxString {
			return nil, errTooMuch("bytes in a string", maxString)
		}
		return t, d.budget.Memory(int64(scalar) + int64(len(t)))
	}
	return t, d.budget.Memory(int64(scalar))
}

func (d *dumpReader) list(depth int) (any, error) {
	l := new(types.List)
	for d.json.More() {
		v, err := d.value(depth)
		if err != nil {
			return nil, err
		}
		*l = append(*l, v)
	}
	_, err := d.json.Token()
	return l, err
}

func (d *dumpReader) dict(depth int) (any, error) {
	m := new(types.Dict)
	for d.json.More() {
		key, err := d.json.Token()
		if err != nil {
			return nil, err
		}
		v, err := d.value(depth)
		if err != nil {
			return nil, err
		}
		if err := d.budget.Memory(int64(scalar)); err != nil {
			return nil, err
		}
		*m = append(*m, types.DictEntry{Key: key, Value: v})
	}
	if _, err := d.json.Token(); err != nil {
		return nil, err
	}
	return d.shrink(m)
}

// number returns an int, a big.Int or a float64, as a pickle does.
func number(n json.Number) any {
	if v, err := strconv.Atoi(string(n)); err == nil {
		return v
	}
	if v, ok := new(big.Int).SetString(string(n), 10); ok {
		return v
	}
	f, _ := n.Float64()
	return f
}

package ranks

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cistern-ml/cistern/trace"
)

// File is what one rank wrote.
type File struct {
	Name string // for errors
	io.Reader
}

// mostLine is how long a line may be: a step of 100,000 operations.
const mostLine = 16 << 20

// ReadFiles reads the named files, as [Read] does.
func ReadFiles(names ...string) (r *Report, err error) {
	var files []File
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("ranks: %w", err)
		}
		defer f.Close()
		files = append(files, File{filepath.Base(name), f})
	}
	return Read(files...)
}

// Read reads the profiles of steps, a line of JSON each, of all ranks: a line of each file in turn, so that little has to be kept. A file may be of several ranks. A line that is no profile, or of another training, is an
// error that wraps [ErrInvalid] and names file and line.
func Read(files ...File) (*Report, error) {
	var m Merger
	var notes []string
	lines := make([]*bufio.Reader, len(files))
	for i, f := range files {
		lines[i] = bufio.NewReaderSize(f, 1<<16)
	}
	for number, open := 1, len(files); open > 0; number++ {
		for i, in := range lines {
			if in == nil {
				continue
			}
			line, err := readLine(in)
			if errors.Is(err, io.EOF) {
				lines[i], open = nil, open-1
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("ranks: %s, line %d: %w", files[i].Name, number, err)
			}
			if len(line) == 0 {
				continue
			}
			var p trace.StepProfile
			if wrong := json.Unmarshal(line, &p); wrong != nil {
				if err != nil { // it was cut off
					notes = append(notes, fmt.Sprintf("%s ends in the middle of line %d", files[i].Name, number))
					continue
				}
				return nil, fmt.Errorf("ranks: %s, line %d: %w: %w", files[i].Name, number, ErrInvalid, wrong)
			}
			if err := m.Add(p); err != nil {
				return nil, fmt.Errorf("%w (%s, line %d)", err, files[i].Name, number)
			}
		}
	}
	r, err := m.Report()
	if err != nil {
		return nil, err
	}
	r.Notes = append(notes, r.Notes...)
	return r, nil
}

// readLine returns a line without its end; with io.EOF, the last one.
func readLine(in *bufio.Reader) (line []byte, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > mostLine {
			return nil, fmt.Errorf("%w: it is longer than %d bytes", ErrInvalid, mostLine)
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return line, err
		default:
			return line[:len(line)-1], nil
		}
	}
}

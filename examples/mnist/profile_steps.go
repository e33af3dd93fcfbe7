package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/cistern-ml/cistern/internal/output"
	"github.com/cistern-ml/cistern/trace"
)

// stepSet are the steps of -profile-steps, such as "17,100-110", as ranges of both ends.
type stepSet [][2]int64

// String is the set as the flag has it.
func (s stepSet) String() string {
	var list []string
	for _, r := range s {
		text := strconv.FormatInt(r[0], 10)
		if r[1] != r[0] {
			text += "-" + strconv.FormatInt(r[1], 10)
		}
		list = append(list, text)
	}
	return strings.Join(list, ",")
}

// Set reads the flag.
func (s *stepSet) Set(text string) error {
	*s = nil
	if strings.TrimSpace(text) == "" {
		return nil
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		lo, err1 := strconv.ParseInt(first, 10, 64)
		hi, err2 := strconv.ParseInt(last, 10, 64)
		if err1 != nil || err2 != nil || lo < 1 || hi < lo {
			return fmt.Errorf("%q: want numbers of steps from 1 on and ranges of them, such as 17,100-110", part)
		}
		*s = append(*s, [2]int64{lo, hi})
	}
	return nil
}

func (s stepSet) has(n int64) bool {
	for _, r := range s {
		if r[0] <= n && n <= r[1] {
			return true
		}
	}
	return false
}

// stepsFile is a file of -steps or -rankprofile: the profile of each step as a line of JSON.
type stepsFile struct {
	flag string
	file io.WriteCloser
	err  error
}

// newStepsFile begins the file or, for a training that goes on, goes on with it.
func newStepsFile(flag, name string, goesOn bool) (*stepsFile, error) {
	if name == "" {
		return nil, nil
	}
	f, err := output.Stream(name, goesOn)
	if err != nil {
		return nil, fmt.Errorf("mnist: -%s: %w", flag, err)
	}
	return &stepsFile{flag: flag, file: f}, nil
}

// write writes a line at once: a program that is killed leaves those of all steps before. The first error ends it.
func (s *stepsFile) write(p trace.StepProfile) {
	if s == nil || s.err != nil {
		return
	}
	text, err := json.Marshal(p)
	if err == nil {
		_, err = s.file.Write(append(text, '\n'))
	}
	s.err = err
}

func (s *stepsFile) close() error {
	if s == nil {
		return nil
	}
	if err := s.file.Close(); s.err == nil {
		s.err = err
	}
	if s.err != nil {
		return fmt.Errorf("mnist: -%s: %w", s.flag, s.err)
	}
	return nil
}

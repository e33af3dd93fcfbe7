package profiledir

import (
	"encoding/json"
	"io"
	"sync"

	"github.com/cistern-ml/cistern/internal/output"
	"github.com/cistern-ml/cistern/trace"
)

// StepLog is a file with the profile of each step as a line of JSON. Package trace/ranks reads one
// for each rank. A nil StepLog does nothing.
type StepLog struct {
	mu   sync.Mutex
	file io.WriteCloser
	err  error
}

// NewStepLog begins a file or, with goesOn, appends to it.
func NewStepLog(name string, goesOn bool) (*StepLog, error) {
	f, err := output.Stream(name, goesOn)
	if err != nil {
		return nil, err
	}
	return &StepLog{file: f}, nil
}

// Write writes a line at once, so that a program that is killed leaves the lines of all steps
// before. It is for trace.ProfilerConfig's OnProfile. The first error ends the file; Close returns
// it.
func (l *StepLog) Write(p trace.StepProfile) {
	if l == nil {
		return
	}
	text, err := json.Marshal(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || l.file == nil {
		return
	}
	if err == nil {
		_, err = l.file.Write(append(text, '\n'))
	}
	l.err = err
}

// Close closes the file and returns the first error. A second call does nothing.
func (l *StepLog) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	if err := l.file.Close(); l.err == nil {
		l.err = err
	}
	l.file = nil
	return l.err
}

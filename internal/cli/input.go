package cli

import (
	"io"
	"iter"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/schollz/progressbar/v3"

	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/internal/recording"
)

// limits are the flags of the budget.
type limits struct {
	MaxMemory size  `placeholder:"BYTES" help:"What a file may cost in memory (default: 8 bytes for each of the file, 256 MiB at least)."`
	MaxWork   int64 `placeholder:"UNITS" help:"What a file may cost in work, in units of 20 ns (default: 8 for each byte, 268435456 at least)."`
}

// Validate is called by kong.
func (l limits) Validate() error { return l.budget().Check() }

func (l limits) budget() budget.Limits {
	return budget.Limits{MaxMemory: int64(l.MaxMemory), MaxWork: l.MaxWork}
}

// shown is the size in bytes from which a terminal shows the progress of reading a file.
const shown = 10 << 20

// open opens a FILE of the command line. name is used in errors and results.
func (e *env) open(file string) (name string, in io.ReadCloser, err error) {
	if file == "-" {
		collect(0)
		return "stdin", io.NopCloser(e.stdin), nil
	}
	name = filepath.Base(file)
	f, err := os.Open(file)
	if err != nil {
		return "", nil, err
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		collect(info.Size())
		if info.Size() > shown && isTerminal(e.stderr) {
			bar := progressbar.NewOptions64(info.Size(), progressbar.OptionSetWriter(e.stderr), progressbar.OptionShowBytes(true),
				progressbar.OptionClearOnFinish(), progressbar.OptionSetDescription(filepath.Base(file)))
			return name, &progress{f, bar}, nil
		}
	}
	return name, f, nil
}

// progress is a file that shows how much of it was read.
type progress struct {
	*os.File
	bar *progressbar.ProgressBar
}

func (p *progress) Read(to []byte) (int, error) {
	n, err := p.File.Read(to)
	_ = p.bar.Add(n)
	return n, err
}

func (p *progress) Close() error {
	_ = p.bar.Finish()
	return p.File.Close()
}

// collect makes the garbage collector free the garbage of reading a file of so many bytes before
// the process exceeds the file's budget, unless the environment variable GOMEMLIMIT is set.
func collect(bytes int64) {
	const least, most = budget.Floor * 3 / 4, 768 << 20
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(min(max(least, bytes*budget.PerByte*budget.MaxRatio), most))
	}
}

// programs reads recordings one after the other, and yields the program of each device in them. It
// reports files that cannot be read.
func (e *env) programs(files []string, l limits) iter.Seq[*recording.Program] {
	return func(yield func(*recording.Program) bool) {
		for _, file := range files {
			e.costly = false
			list, err := e.read(file, l)
			if err != nil {
				e.fail(err)
				continue
			}
			for _, p := range list {
				if e.costly {
					break
				}
				if !yield(p) {
					return
				}
			}
		}
	}
}

func (e *env) read(file string, l limits) ([]*recording.Program, error) {
	name, in, err := e.open(file)
	if err != nil {
		return nil, err
	}
	list, err := recording.Read(in, name, recording.Options{Limits: l.budget()})
	_ = in.Close()
	if err != nil {
		return nil, err
	}
	programs := make([]*recording.Program, len(list))
	for i, r := range list {
		if programs[i], err = recording.NewProgram(r); err != nil {
			return nil, err
		}
	}
	return programs, nil
}

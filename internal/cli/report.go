package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/internal/output"
	"github.com/cistern-ml/cistern/trace/report"
)

// page is cistern report.
type page struct {
	File      string   `arg:"" predictor:"file" help:"A recording, or - for the standard input."`
	Output    string   `short:"o" default:"report.html" placeholder:"FILE" predictor:"file" help:"Where the page goes; - is the standard output (default: report.html)."`
	Title     string   `help:"The page's title (default: the file's name)."`
	Addresses bool     `help:"Show the addresses of memory, and not only their distances."`
	Config    []string `short:"c" sep:"none" placeholder:"OPTIONS" help:"Options to try, as of whatif (default: the list of whatif)."`
	NoWhatif  bool     `help:"Try no other options, which is faster."`
	limits
}

func (*page) example() string { return "cistern report -o report.html snapshot.pickle" }

// Validate is called by kong.
func (c *page) Validate() error {
	if c.Output == "" {
		return errors.New("--output needs a name; - is the standard output")
	}
	if c.NoWhatif && len(c.Config) > 0 {
		return errors.New("--config and --no-whatif exclude each other")
	}
	return report.CheckWhatIf(c.Config)
}

// Run writes the page.
func (c *page) Run(e *env) error {
	if err := output.Check(c.Output, c.File); err != nil {
		return err
	}
	name, in, err := e.open(c.File)
	if err != nil {
		return err
	}
	o := report.Options{Name: c.Title, Addresses: c.Addresses, WhatIf: c.Config, Suggest: !c.NoWhatif && len(c.Config) == 0,
		MaxMemory: int64(c.MaxMemory), MaxWork: c.MaxWork}
	reports, err := report.Read(in, name, o)
	_ = in.Close()
	if err != nil {
		return err
	}
	return e.write(c.Output, func(w io.Writer) error { return report.Write(w, reports...) })
}

// write writes a file that the command line names, and reports its size.
func (e *env) write(name string, write func(io.Writer) error) error {
	if name == "-" {
		return write(e.stdout)
	}
	var n counter
	if err := output.Write(name, func(w io.Writer) error { return write(io.MultiWriter(w, &n)) }); err != nil {
		return err
	}
	fmt.Fprintf(e.stderr, "%s: %s\n", name, humanize.IBytes(uint64(n)))
	return nil
}

// counter counts bytes.
type counter uint64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// Command memreport writes a page of what a recording's memory was used for: one HTML file that needs no network.
//
//	memreport [-o FILE] [-what-if OPTIONS]... FILE
//
// FILE is a snapshot of torch.cuda.memory._dump_snapshot, or a recording in JSON lines, of memcache or of the same entries; both may be
// compressed with gzip. A snapshot of several devices gives one page with all of them.
//
// The page has memory over time, who held it at the peak and at any other moment, the segments and blocks with their holes, the table of
// steps, what was never freed, and what other options would have cost. For the last the recording is replayed; -what-if names the
// options in place of memreport's own list, as the value of PYTORCH_CUDA_ALLOC_CONF ("" is PyTorch's default) or as memreplay
// takes them, and -no-what-if leaves it out, which is faster.
//
// The exit status is 0, 1 if the file can't be read or the page not be written, and 2 if the command line is wrong.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/trace/report"
)

func main() {
	recording.CollectEagerly()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// defaultReplay is how many calls are replayed for memreport's own list of options: some seconds.
const defaultReplay = 1 << 20

// run is main with its surroundings.
func run(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	}
	size, err := o.write(stdout)
	if err != nil {
		fmt.Fprintln(stderr, "memreport:", err)
		return exitFailed
	}
	if o.out != "-" {
		fmt.Fprintf(stderr, "%s: %.1f KiB\n", o.out, float64(size)/1024)
	}
	return exitOK
}

// options are what the command line says.
type options struct {
	file, out string
	report    report.Options
}

// parse reads the command line.
func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("memreport", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprintln(stderr, "usage: memreport [-o report.html] [-what-if OPTIONS]... FILE")
		f.PrintDefaults()
	}
	f.StringVar(&o.out, "o", "report.html", "write the page to `FILE`; - is the standard output")
	f.StringVar(&o.report.Name, "title", "", "the page's `title`, in place of the file's name")
	f.BoolVar(&o.report.Addresses, "addresses", false, "tell the addresses of memory, and not only the distances between them")
	f.Int64Var(&o.report.MaxBytes, "max-bytes", 0, "read at most this many `bytes`, decompressed (default 1 GiB)")
	f.IntVar(&o.report.MaxEntries, "max-entries", 0, "read at most this `number` of entries (default 2097152)")
	f.Func("what-if", "replay under these `OPTIONS`; can be repeated", func(text string) error {
		o.report.WhatIf = append(o.report.WhatIf, text)
		return report.CheckWhatIf(o.report.WhatIf)
	})
	without := f.Bool("no-what-if", false, "replay nothing")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	var err error
	switch {
	case f.NArg() != 1:
		err = fmt.Errorf("%d files are given; want one", f.NArg())
	case *without && len(o.report.WhatIf) > 0:
		err = errors.New("-what-if and -no-what-if exclude each other")
	case o.report.MaxBytes < 0 || o.report.MaxEntries < 0:
		err = errors.New("-max-bytes and -max-entries are positive, or 0 for the default")
	}
	if err != nil {
		fmt.Fprintln(stderr, "memreport:", err)
		f.Usage()
		return nil, err
	}
	if len(o.report.WhatIf) == 0 && !*without {
		o.report.WhatIf, o.report.MaxReplay = report.DefaultWhatIf(), defaultReplay
	}
	o.file = f.Arg(0)
	return o, nil
}

// write makes the page, and returns its size in bytes. A page that can't be finished leaves no file behind.
func (o *options) write(stdout io.Writer) (int64, error) {
	in, err := os.Open(o.file)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	reports, err := report.Read(in, filepath.Base(o.file), o.report)
	if err != nil {
		return 0, err
	}
	if o.out == "-" {
		return 0, report.Write(stdout, reports...)
	}
	out, err := create(o.out)
	if err != nil {
		return 0, err
	}
	buffer := bufio.NewWriter(out.file)
	counted := &counter{w: buffer}
	err = errors.Join(report.Write(counted, reports...), buffer.Flush())
	return counted.n, out.finish(err)
}

// counter counts what is written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

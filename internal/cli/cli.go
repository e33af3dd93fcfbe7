// Package cli implements the command cistern: its flags, tables and JSON. [Run] runs a command
// line.
package cli

import (
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"
	"github.com/posener/complete"
	"github.com/willabides/kongplete"
	"golang.org/x/term"

	"github.com/cistern-ml/cistern/internal/budget"
)

// Exit statuses.
const (
	exitOK      = 0
	exitDiffers = 1 // a verification found differences
	exitFailed  = 2 // usage, or a file that can't be read or written
)

const usage = `Run "cistern --help" for usage.`

const description = `Verify, compare and show recordings of device memory.

A recording FILE is a snapshot of torch.cuda.memory._dump_snapshot (pickle or JSON), JSON lines of its entries, or a stream of trace/record; plain, gzip or zstd. "-" is the standard input. No GPU is needed.`

// commands are the subcommands. The method example of each begins its help.
type commands struct {
	Verify verify   `cmd:"" help:"Replay recordings and compare every address and driver call with PyTorch's."`
	WhatIf whatIf   `cmd:"" name:"whatif" help:"Show what recordings would have cost under other allocator options."`
	Report page     `cmd:"" help:"Write an HTML page of what a recording's memory was used for."`
	Ranks  ranked   `cmd:"" help:"Show how the ranks of a training waited for each other."`
	Diff   compared `cmd:"" help:"Compare the memory of two runs, by category, module, line and step."`

	Completions kongplete.InstallCompletions `cmd:"" help:"Print the shell's command that turns completion on."`
}

// env is the input and output of a command, and its exit status.
type env struct {
	stdin  io.Reader
	stdout *sink
	stderr io.Writer
	status int
	costly bool // a file exceeded its budget: the rest of the file is skipped
}

// fail reports an error. The command continues.
func (e *env) fail(err error) {
	fmt.Fprintln(e.stderr, "cistern:", printable(err.Error()))
	e.costly = e.costly || errors.Is(err, budget.ErrExceeded)
	e.status = exitFailed
}

// differ records that a verification found differences.
func (e *env) differ() { e.status = max(e.status, exitDiffers) }

// sink keeps the first error of a writer.
type sink struct {
	io.Writer
	err error
}

func (o *sink) Write(p []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.Writer.Write(p)
	o.err = err
	return n, err
}

// exited carries the exit status from kong's Exit to Run, in a panic.
type exited int

// Run runs the command line args and returns the exit status.
func Run(args []string, stdin io.Reader, stdout, stderr io.Writer) (status int) {
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case exited:
			status = int(cause)
		default:
			panic(cause)
		}
	}()
	e := &env{stdin: stdin, stdout: &sink{Writer: stdout}, stderr: stderr}
	parser, err := kong.New(new(commands), kong.Name("cistern"), kong.Description(description), kong.Writers(e.stdout, stderr), kong.Bind(e),
		kong.Exit(func(code int) { panic(exited(code)) }), kong.Help(help), kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.TypeMapper(reflect.TypeFor[size](), kong.MapperFunc(parseSize)))
	if err != nil {
		panic(err) // the commands' tags are wrong
	}
	kongplete.Complete(parser, kongplete.WithPredictor("file", complete.PredictFiles("*")))
	ctx, err := parser.Parse(args)
	if err != nil {
		err = fmt.Errorf("%w. %s", err, usage)
	} else {
		err = ctx.Run()
	}
	if err != nil && (e.stdout.err == nil || !errors.Is(err, e.stdout.err)) {
		e.fail(err)
	}
	if e.stdout.err != nil {
		e.fail(fmt.Errorf("the standard output: %w", e.stdout.err))
	}
	return e.status
}

// help prints the example of a command before kong's help.
func help(o kong.HelpOptions, ctx *kong.Context) error {
	if node := ctx.Selected(); node != nil {
		if c, ok := node.Target.Addr().Interface().(interface{ example() string }); ok {
			fmt.Fprintf(ctx.Stdout, "Example: %s\n\n", c.example())
		}
	}
	return kong.DefaultHelpPrinter(o, ctx)
}

// size is a number of bytes, such as 512MiB.
type size int64

func parseSize(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("size", &text); err != nil {
		return err
	}
	n, err := humanize.ParseBytes(text)
	if err != nil || n > 1<<60 {
		return fmt.Errorf("%q is not a size; want bytes, such as 512MiB or 2GB", text)
	}
	target.SetInt(int64(n))
	return nil
}

// isTerminal reports whether a writer is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

package cli

import (
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/internal/output"
	"github.com/cistern-ml/cistern/trace/ranks"
)

// ranked is cistern ranks.
type ranked struct {
	Files  []string `arg:"" name:"file" predictor:"file" help:"The profiles of steps in plain JSON lines, a file of each rank."`
	Output string   `short:"o" placeholder:"FILE" predictor:"file" help:"Write an HTML page, too."`
	JSON   bool     `help:"Print the figures as a JSON object."`
	Title  string   `default:"training" help:"The page's title."`
	Trace  string   `name:"trace-url" placeholder:"URL" help:"A viewer's address of a trace, such as http://localhost:16686/trace/{trace_id}. The page links steps to it."`
	limits
}

func (*ranked) example() string { return "cistern ranks -o ranks.html rank0.jsonl rank1.jsonl" }

// Validate is called by kong.
func (c *ranked) Validate() error {
	if c.JSON && c.onStdout() {
		return fmt.Errorf("--json and --output %s both go to the standard output; give the page a file", c.Output)
	}
	return nil
}

// onStdout reports whether the page goes to the standard output.
func (c *ranked) onStdout() bool { return c.Output == "-" || output.IsStandard(c.Output) }

// Run merges the ranks' profiles.
func (c *ranked) Run(e *env) error {
	if err := output.Check(c.Output, c.Files...); err != nil {
		return err
	}
	files := make([]ranks.File, len(c.Files))
	for i, file := range c.Files {
		name, in, err := e.open(file)
		if err != nil {
			return err
		}
		defer in.Close()
		files[i] = ranks.File{Name: name, Reader: in}
	}
	r, err := ranks.Read(ranks.Options{MaxMemory: int64(c.MaxMemory), MaxWork: c.MaxWork, TraceURL: c.Trace}, files...)
	if err != nil {
		return err
	}
	if c.Output != "" {
		if err := e.write(c.Output, func(w io.Writer) error { return r.HTML(w, c.Title) }); err != nil {
			return err
		}
	}
	if c.JSON {
		e.printJSON(r)
		return nil
	}
	if c.onStdout() {
		return nil
	}
	return r.Table(e.stdout)
}

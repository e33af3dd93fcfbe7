// Command rankreport puts the profiles of several ranks' steps together: who waits for whom, whose memory is where, and who is the straggler.
//
//	rankreport [-o FILE] [-json FILE] FILE...
//
// Each FILE has the profiles of one rank's steps in JSON lines, as examples/mnist writes them with -rankprofile. It prints a table, and writes a page with -o and the figures with -json. The page is one HTML
// file that needs no network.
//
// The exit status is 0, 1 if a file can't be read or written, and 2 if the command line is wrong.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/cistern-ml/cistern/trace/ranks"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main with its surroundings.
func run(args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet("rankreport", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprintln(stderr, "usage: rankreport [-o ranks.html] [-json ranks.json] FILE...")
		f.PrintDefaults()
	}
	page := f.String("o", "", "write a page to `FILE`")
	figures := f.String("json", "", "write the figures to `FILE`")
	title := f.String("title", "training", "the page's `title`")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case f.NArg() == 0:
		fmt.Fprintln(stderr, "rankreport: no file is given; want one of each rank")
		f.Usage()
		return 2
	}
	if err := report(f.Args(), *page, *figures, *title, stdout); err != nil {
		fmt.Fprintln(stderr, "rankreport:", err)
		return 1
	}
	return 0
}

func report(files []string, page, figures, title string, stdout io.Writer) error {
	r, err := ranks.ReadFiles(files...)
	if err != nil {
		return err
	}
	if page != "" {
		var out bytes.Buffer
		if err := r.HTML(&out, title); err != nil {
			return err
		}
		if err := os.WriteFile(page, out.Bytes(), 0o666); err != nil {
			return err
		}
	}
	if figures != "" {
		text, err := json.MarshalIndent(r, "", "\t")
		if err != nil {
			return err
		}
		if err := os.WriteFile(figures, append(text, '\n'), 0o666); err != nil {
			return err
		}
	}
	return r.Table(stdout)
}

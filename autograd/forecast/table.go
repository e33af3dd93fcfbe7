package forecast

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/internal/callframe"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/trace/report"
)

// Table prints the forecast: whether the training fits, the holders of memory at the peak of the
// second step, and the model by layers. The JSON encoding of a Forecast has all its data.
func (f *Forecast) Table(w io.Writer) error {
	out := &printer{w: w}
	out.print("%s in %s of %s: peaks of %s reserved, %s allocated, %s pinned host memory\n",
		verdict(f.Fits), sizes.Format(f.Capacity), f.Device, sizes.Format(f.ReservedPeak), sizes.Format(f.AllocatedPeak), sizes.Format(f.PinnedPeak))
	for _, a := range f.Advice {
		out.print("  with %s: %s, %s reserved, %s allocated\n", a.Name, verdict(a.Fits), sizes.Format(a.ReservedPeak), sizes.Format(a.AllocatedPeak))
	}
	out.print("peak of the second step: %s allocated, %s reserved, %s held by graphs; reached by the allocation at %s\n", sizes.Format(f.Step.AllocatedPeak),
		sizes.Format(f.Step.ReservedPeak), sizes.Format(f.Step.GraphBytes), f.PeakLine.place())
	if p := f.Step.Peak; p != nil {
		for _, c := range p.Categories {
			out.held(c.Bytes, c.Name, c.Blocks)
		}
	}
	for _, l := range f.Lines[:min(len(f.Lines), 5)] {
		out.held(l.Bytes, l.place(), l.Blocks)
	}
	if len(f.Layers) > 0 {
		f.layers(out)
	}
	return out.err
}

func verdict(fits bool) string {
	if fits {
		return "fits"
	}
	return "does not fit"
}

func (l Line) place() string { return callframe.Place(l.Function, l.File, l.Line) }

// layers prints the summary of the model.
func (f *Forecast) layers(out *printer) {
	sum := report.Layer{}
	width := len("layer")
	for _, l := range f.Layers {
		width = max(width, len(title(&l)))
		sum.Parameters += l.Parameters
		sum.ParameterBytes += l.ParameterBytes
		sum.ActivationBytes += l.ActivationBytes
		sum.GradientBytes += l.GradientBytes
		sum.StateBytes += l.StateBytes
		sum.WorkspaceBytes += l.WorkspaceBytes
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	rows := &printer{w: table}
	rows.print("%-*s\toutput\town parameters\tparameter bytes\tactivations\tgradients\toptimiser\tworkspace\t\n", width, "layer")
	for _, l := range f.Layers {
		rows.row(width, title(&l), l)
	}
	rows.row(width, "sum", sum)
	if out.err == nil {
		out.err = table.Flush()
	}
}

// title returns the last part of a layer's name and its type, indented.
func title(l *report.Layer) string {
	if l.Name == "" {
		return "model " + l.Type
	}
	return strings.Repeat("  ", strings.Count(l.Name, ".")+1) + l.Name[strings.LastIndexByte(l.Name, '.')+1:] + " " + l.Type
}

// held prints a holder of memory.
func (p *printer) held(bytes int64, name string, blocks int) {
	p.print("  %10s  %s (blocks: %s)\n", sizes.Format(bytes), name, humanize.Comma(int64(blocks)))
}

func (p *printer) row(width int, title string, l report.Layer) {
	p.print("%-*s\t%s\t%s", width, title, l.Output, humanize.Comma(int64(l.Parameters)))
	for _, n := range []int64{l.ParameterBytes, l.ActivationBytes, l.GradientBytes, l.StateBytes, l.WorkspaceBytes} {
		if n == 0 {
			p.print("\t")
		} else {
			p.print("\t%s", sizes.Format(n))
		}
	}
	p.print("\t\n")
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) print(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) Write(b []byte) (int, error) { return p.w.Write(b) }

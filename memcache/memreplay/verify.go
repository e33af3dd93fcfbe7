package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/replay"
)

// programs reads a file, and gives each program in it.
func (o *options) programs(file string) ([]*recording.Program, error) {
	list, err := recording.ReadFile(file, o.limits)
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

// verified is what -json prints of a verification.
type verified struct {
	Trace             string   `json:"trace"`
	Config            string   `json:"config"`
	Allocs            int      `json:"allocs"`
	AddressMismatches int      `json:"address_mismatches"`
	CallMismatches    int      `json:"call_mismatches"`
	StatMismatches    int      `json:"stat_mismatches"`
	BlockMismatches   int      `json:"block_mismatches"`
	PeakAllocated     int64    `json:"peak_allocated"`
	PeakReserved      int64    `json:"peak_reserved"`
	Retries           *int64   `json:"retries,omitempty"` // missing if unknown
	OOMs              int64    `json:"ooms"`
	NsPerOp           *float64 `json:"ns_per_op,omitempty"` // missing if the calls were not made again
	First             string   `json:"first_mismatch,omitempty"`
	Agree             int      `json:"agree,omitempty"` // entries before the first mismatch
	Reason            string   `json:"reason,omitempty"`
	Notes             []string `json:"notes,omitempty"`
}

// verify is memreplay FILE...
func (o *options) verify(stdout, stderr io.Writer) int {
	status := exitOK
	table := newTable(stdout, "trace\tallocs\tmismatches\tpeak allocated\tpeak reserved\tretries\tooms\tns/op")
	var remarks []string
	for _, file := range o.files {
		programs, err := o.programs(file)
		if err != nil {
			fmt.Fprintln(stderr, err)
			status = exitFailed
			continue
		}
		for _, p := range programs {
			v, err := replay.Verify(p)
			if err != nil {
				fmt.Fprintln(stderr, err)
				status = exitFailed
				continue
			}
			if v.Mismatches() > 0 {
				status = exitFailed
			}
			if o.json {
				printJSON(stdout, toJSON(p, v))
				continue
			}
			retries, ns := "-", "-"
			if v.Retries >= 0 {
				retries = strconv.FormatInt(v.Retries, 10)
			}
			if v.Elapsed > 0 {
				ns = fmt.Sprintf("%.0f", v.NsPerOp())
			}
			table.row("%s\t%d\t%d\t%s\t%s\t%s\t%d\t%s\n", p.Name, v.Allocs, v.Mismatches(), formatBytes(v.PeakAllocated),
				formatBytes(v.PeakReserved), retries, v.OOMs, ns)
			remarks = append(remarks, remark(p, v)...)
		}
	}
	if err := table.out.Flush(); err != nil {
		fmt.Fprintln(stderr, err)
		status = exitFailed
	}
	for _, r := range remarks {
		fmt.Fprintln(stdout, r)
	}
	return status
}

// remark is what the table has no column for.
func remark(p *recording.Program, v *replay.Verification) (lines []string) {
	for _, n := range v.Notes {
		lines = append(lines, fmt.Sprintf("%s: %s", p.Name, n))
	}
	if v.Mismatches() > 0 {
		lines = append(lines,
			fmt.Sprintf("%s: %d addresses, %d calls, %d statistics and %d blocks differ; first: %s", p.Name,
				v.AddressMismatches, v.CallMismatches, v.StatMismatches, v.BlockMismatches, v.First),
			fmt.Sprintf("%s: %d of %d entries agree before that", p.Name, v.Agree, len(p.Entries)),
			fmt.Sprintf("%s: the likely reason: %s", p.Name, v.Reason))
	}
	return lines
}

func toJSON(p *recording.Program, v *replay.Verification) verified {
	j := verified{
		Trace: p.Name, Config: p.Conf, Allocs: v.Allocs,
		AddressMismatches: v.AddressMismatches, CallMismatches: v.CallMismatches,
		StatMismatches: v.StatMismatches, BlockMismatches: v.BlockMismatches,
		PeakAllocated: v.PeakAllocated, PeakReserved: v.PeakReserved, OOMs: v.OOMs,
		First: v.First, Agree: v.Agree, Reason: v.Reason, Notes: v.Notes,
	}
	if v.Retries >= 0 {
		j.Retries = &v.Retries
	}
	if ns := v.NsPerOp(); v.Elapsed > 0 {
		j.NsPerOp = &ns
	}
	return j
}

func printJSON(w io.Writer, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		text = fmt.Appendf(nil, "{\"error\":%q}", err)
	}
	fmt.Fprintln(w, string(text))
}

// formatBytes is n as people read it.
func formatBytes(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

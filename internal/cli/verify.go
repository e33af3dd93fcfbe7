package cli

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/replay"
)

// verify is cistern verify.
type verify struct {
	Files []string `arg:"" name:"file" predictor:"file" help:"Recordings, or - for the standard input."`
	JSON  bool     `help:"Print a JSON object for each recording."`
	limits
}

func (*verify) example() string { return "cistern verify snapshot.pickle" }

// verified is the JSON of a verification.
type verified struct {
	Trace             string `json:"trace"`
	Config            string `json:"config"`
	Allocs            int    `json:"allocs"`
	AddressMismatches int    `json:"address_mismatches"`
	CallMismatches    int    `json:"call_mismatches"`
	StatMismatches    int    `json:"stat_mismatches"`
	BlockMismatches   int    `json:"block_mismatches"`
	PeakAllocated     int64  `json:"peak_allocated"`
	PeakReserved      int64  `json:"peak_reserved"`
	Retries           *int64 `json:"retries,omitempty"` // missing if unknown
	OOMs              int64  `json:"ooms"`
	// missing if the calls were not repeated
	NsPerOp *float64 `json:"ns_per_op,omitempty"`
	First   string   `json:"first_mismatch,omitempty"`
	Agree   int      `json:"agree,omitempty"` // entries before the first mismatch
	Reason  string   `json:"reason,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

// Run verifies each file.
func (c *verify) Run(e *env) error {
	table := newTable(e.stdout, "trace\tallocs\tmismatches\tpeak allocated\tpeak reserved\tretries\tooms\tns/op")
	var remarks []string
	for p := range e.programs(c.Files, c.limits) {
		v, err := replay.Verify(p)
		if err != nil {
			e.fail(err)
			continue
		}
		if v.Mismatches() > 0 {
			e.differ()
		}
		if c.JSON {
			e.printJSON(toJSON(p, v))
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
	table.end(remarks)
	return nil
}

// remark returns the lines below the table, for results without a column.
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

func (e *env) printJSON(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		e.fail(err)
		return
	}
	fmt.Fprintln(e.stdout, string(text))
}

// formatBytes formats n for people.
func formatBytes(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

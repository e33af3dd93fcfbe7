package plan

// RowNorm is the plan of a normalisation of rows: N times Groups rows of Per times Inner elements.
// Element (i, j) of a row of group g has weight g*Per + i. A layer norm has one group and an Inner
// of 1; the rows of a group norm are channels and their pixels.
type RowNorm struct {
	N, Groups, Per, Inner int
	Eps                   float64
	Centered              bool // the mean becomes 0; otherwise the root mean square becomes 1
}

// Rows is the number of rows.
func (p *RowNorm) Rows() int { return p.N * p.Groups }

// Cols is the number of elements of a row.
func (p *RowNorm) Cols() int { return p.Per * p.Inner }

// BatchNorm is the plan of a normalisation of channels: x is [N, C, Inner].
type BatchNorm struct {
	N, C, Inner int
	Training    bool    // by the batch's statistics, and not by the running ones
	Momentum    float64 // the batch's share of the new running statistics; NaN: they are the mean of all batches
	Eps         float64
}

// Count is the number of elements of a channel.
func (p *BatchNorm) Count() int { return p.N * p.Inner }

// Channel returns the offset of the first element of channel c of image n.
func (p *BatchNorm) Channel(n, c int) int { return (n*p.C + c) * p.Inner }

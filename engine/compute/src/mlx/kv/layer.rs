//! One layer's keys and values in a batch.

use super::{
    rotation::{Order, Write},
    stored::Stored,
};
use crate::mlx::graph::{Graph, Packing, Result};
use mlx_rs::Array;

/// Keys and values of one layer; nothing before the first tokens.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerStore {
    pub(super) held: Option<(Stored, Stored)>,
}

impl LayerStore {
    /// Takes in the keys and values `[rows, heads, length, head_dim]` of new tokens, and returns what attention sees.
    pub(super) fn write(
        &mut self,
        graph: &Graph,
        write: &Write,
        packing: Option<Packing>,
        keys: &Array,
        values: &Array,
    ) -> Result<(Stored, Stored)> {
        // A layer that is quantized quantizes what it takes in; until then tokens are held as they came.
        let is_affine = matches!(&self.held, Some((Stored::Affine(_), _)));
        let incoming = |array: &Array| match packing.filter(|_| is_affine) {
            Some(packing) => Ok(Stored::Affine(graph.quantize(array, packing)?)),
            None => Ok(Stored::plain(array.clone())),
        };
        self.take_in(graph, write, &incoming(keys)?, &incoming(values)?)
    }

    /// Takes in tokens that are packed as the layer's own.
    pub(super) fn take_in(
        &mut self,
        graph: &Graph,
        write: &Write,
        new_keys: &Stored,
        new_values: &Stored,
    ) -> Result<(Stored, Stored)> {
        // What was held is given away, so that nobody else holds it when it is written to in place.
        let (old_keys, old_values) = self.held.take().unzip();
        let (keys, seen_keys) = take_in(graph, write, old_keys, new_keys)?;
        let (values, seen_values) = take_in(graph, write, old_values, new_values)?;
        self.held = Some((keys, values));
        Ok((seen_keys, seen_values))
    }

    /// The same operation on keys and on values.
    pub(super) fn map(&mut self, operation: impl Fn(&Stored) -> Result<Stored>) -> Result<()> {
        if let Some((keys, values)) = &self.held {
            self.held = Some((operation(keys)?, operation(values)?));
        }
        Ok(())
    }

    /// Bytes of its arrays.
    pub(super) fn bytes(&self) -> usize {
        self.held.as_ref().map_or(0, |(keys, values)| keys.bytes() + values.bytes())
    }

    /// All its arrays.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.held.iter().flat_map(|(keys, values)| keys.arrays().iter().chain(values.arrays()))
    }
}

/// What is held now, and what attention sees of it.
fn take_in(graph: &Graph, write: &Write, old: Option<Stored>, new: &Stored) -> Result<(Stored, Stored)> {
    match *write {
        Write::InPlace { cut, grow, trim, at, view } => {
            let mut held = match old {
                None => new.zeros_like(graph, new.rows(), grow)?,
                Some(held) if grow > 0 => {
                    let held = held.cut(graph, 0, cut.unwrap_or(held.tokens()))?;
                    held.followed_by(graph, &held.zeros_like(graph, held.rows(), grow)?)?
                }
                Some(held) => held,
            };
            if trim > 0 {
                held = held.cut(graph, trim, held.tokens())?;
            }
            let held = held.zip(new, |held, new| graph.update_tokens(held, new, at as i32))?;
            let seen = held.cut(graph, 0, view)?;
            Ok((held, seen))
        }
        Write::Append { order, trim } => {
            let held = match old {
                None => new.clone(),
                Some(old) => {
                    let ordered = in_order(graph, &old, order)?;
                    ordered.cut(graph, trim, ordered.tokens())?.followed_by(graph, new)?
                }
            };
            Ok((held.clone(), held))
        }
    }
}

/// Tokens in the order of time.
pub(super) fn in_order(graph: &Graph, held: &Stored, order: Order) -> Result<Stored> {
    match order {
        Order::Kept => Ok(held.clone()),
        Order::Cut(index) => held.cut(graph, 0, index),
        Order::Rolled(index) => {
            let (old, new) = (held.cut(graph, index, held.tokens())?, held.cut(graph, 0, index)?);
            if index == 0 { Ok(held.clone()) } else { old.followed_by(graph, &new) }
        }
    }
}

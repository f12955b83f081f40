//! A step: batches of rows, each with its tokens, positions and masks.

use super::{
    graph::{Graph, Result},
    kv::GroupPlan,
    tokens::{self, Id, MlxTokens},
};
use crate::Row;
use mlx_rs::Array;
use std::{cell::RefCell, rc::Rc};

/// A prepared step.
pub struct MlxStep {
    pub(super) groups: Vec<Group>,
    /// For each group, which of the step's output lines it yields.
    pub(super) lines: Rc<[Vec<usize>]>,
    /// Known once a step without results is through.
    pub(super) marker: RefCell<Option<Array>>,
    /// Arrays at the ends of the pieces in which the step is submitted.
    pub(super) piece_ends: RefCell<Vec<Array>>,
}

/// One batch's share of a step.
pub(super) struct Group {
    pub(super) plan: GroupPlan,
    /// `[rows, length]`.
    pub(super) ids: Array,
    /// The greatest id that the host knows.
    pub(super) greatest_id: Option<u32>,
    pub(super) wanted: Wanted,
    /// The greatest position of a token.
    pub(super) last_position: Option<usize>,
}

/// Which places of a group reach the output head.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    None,
    /// All of them, none of which is padding.
    All,
    /// These, counted over all rows and their places.
    Some(Vec<u32>),
}

impl MlxStep {
    pub(super) fn new(graph: &Graph, plans: Vec<GroupPlan>, rows: &[Row], tokens: &MlxTokens) -> Result<Self> {
        // Where each row's tokens and output lines begin.
        let mut starts = Vec::with_capacity(rows.len());
        let (mut token, mut line) = (0, 0);
        for row in rows {
            starts.push((token, line));
            token += row.length;
            line += row.outputs.places(row.length).len();
        }
        let mut lines = Vec::with_capacity(plans.len());
        let mut groups = Vec::with_capacity(plans.len());
        for plan in plans {
            let mut ids: Vec<Option<&Id>> = Vec::with_capacity(plan.members.len() * plan.length);
            let (mut places, mut own_lines) = (Vec::new(), Vec::new());
            for (number, &member) in plan.members.iter().enumerate() {
                let (row, (token, line)) = (&rows[member], starts[member]);
                ids.extend(tokens.ids()[token..token + row.length].iter().map(Some));
                ids.extend(std::iter::repeat_n(None, plan.length - row.length));
                let first = number * plan.length;
                let wanted = row.outputs.places(row.length);
                own_lines.extend(line..line + wanted.len());
                places.extend(wanted.map(|place| (first + place) as u32));
            }
            let total = plan.members.len() * plan.length;
            let wanted = if places.is_empty() {
                Wanted::None
            } else if places.len() == total {
                Wanted::All
            } else {
                Wanted::Some(places)
            };
            let greatest_id = ids
                .iter()
                .filter_map(|id| match id {
                    Some(Id::Host(id)) => Some(*id),
                    _ => None,
                })
                .max();
            let ids = tokens::to_array(graph, &ids, plan.members.len(), plan.length)?;
            let last_position = plan.members.iter().map(|&member| rows[member].start + rows[member].length - 1).max();
            groups.push(Group { plan, ids, greatest_id, wanted, last_position });
            lines.push(own_lines);
        }
        Ok(Self { groups, lines: lines.into(), marker: RefCell::new(None), piece_ends: RefCell::default() })
    }
}

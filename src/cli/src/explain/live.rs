//! The same objects out of clusters.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Event, LimitRange, Namespace, Node, Pod, ResourceQuota};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{ApiResource, ListParams};
use kube::{Client, Resource};
use outrigger_agent::annotations::Pattern;
use outrigger_api::{AdminWorkloadRule, Machine, Tenant, WorkloadRule};
use outrigger_core::admin::AdminNamespaces;
use outrigger_core::keys;
use outrigger_core::template::{self, Kind};
use serde::Serialize;
use serde_json::Value;

pub(crate) use super::clients::{Clients, client};
use super::view::ViewArgs;
use crate::attributes::ReadAttributes;
use crate::cluster::{Unread as Failure, each, in_time, of_kind};
use crate::files::{InputError, Object, Origin};
use crate::rules::RuleKind;
use crate::state::State;

/// What a state shows.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// The source, for messages.
    pub(super) place: String,
    /// It is that of a cluster, as it is now.
    pub(super) live: bool,
    /// It shows the infrastructure cluster: DPUs and companions.
    pub(super) infrastructure: bool,
    /// It shows the Pods of the tenant's cluster.
    pub(crate) workloads: bool,
    /// It shows all devices that there are.
    pub(super) devices: bool,
    pub(super) claims: ClaimScope,
    /// The platform's namespaces.
    pub(super) admin: AdminNamespaces,
    /// Which of the rules it shows.
    pub(super) rules: RulesKnown,
    /// The Nodes of the tenant's cluster; `None` if they can't be seen.
    pub(super) hosts: Option<Vec<Object>>,
    /// Attributes of the devices of workloads.
    pub(crate) attributes: ReadAttributes,
    /// What it doesn't show.
    pub(crate) notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimScope {
    /// Those that were given; without any it isn't known whether there are some.
    Given,
    /// All of the tenant's namespace, and no others.
    Own,
    /// All that there are.
    All,
}

/// Which rules of the cluster are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum RulesKnown {
    /// All that there are.
    All,
    /// Those of some namespaces.
    Some,
    /// None: whether a rule matches a workload isn't known.
    None,
}

impl Source {
    /// Files; `flag` names them.
    pub(crate) fn files(flag: &str) -> Self {
        Self {
            place: flag.to_owned(),
            live: false,
            infrastructure: true,
            workloads: true,
            devices: false,
            claims: ClaimScope::Given,
            admin: AdminNamespaces::default(),
            rules: RulesKnown::All,
            hosts: None,
            attributes: ReadAttributes::unnamed(),
            notes: Vec::new(),
        }
    }

    /// The same where these are the platform's namespaces.
    pub(crate) fn with_admin(self, admin: &AdminNamespaces) -> Self {
        Self { admin: admin.clone(), ..self }
    }

    /// Whether the Pods that it shows are those of one tenant's cluster.
    pub(crate) fn is_of_one_tenant(&self) -> bool {
        self.live && self.workloads
    }

    /// Whether it is that of files, which may have the Pods of several tenants.
    pub(crate) fn is_files(&self) -> bool {
        !self.live
    }
}

/// Kinds whose objects may not be read, so that nothing follows from the absence of one.
pub(super) type Unread = BTreeSet<String>;

/// What is read beside what every command needs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct More<'a> {
    /// Admin rules and their companions, in these namespaces.
    pub(crate) admin: Option<&'a AdminNamespaces>,
    /// Machines, which say how many slots they have.
    pub(crate) machines: bool,
    /// ResourceQuotas and LimitRanges.
    pub(crate) quotas: bool,
    /// What the agent reports in a tenant's cluster besides conditions of Pods: Events and Nodes. Rules that may not be read are no
    /// error then.
    pub(crate) agent_reports: bool,
    /// The attributes of the devices of workloads that the agent sends.
    pub(crate) attributes: &'a [Pattern],
}

/// Reads what is needed of the cluster, and of the tenant's where that is named too.
/// Of the tenant's Pods only those of `namespace`, where one is named.
pub(crate) async fn read(
    clients: &Clients,
    args: &ViewArgs,
    namespace: Option<&str>,
    more: More<'_>,
) -> anyhow::Result<(State, Source)> {
    let mut reader = Reader::new(clients.cluster.clone());
    let infrastructure = is_infrastructure(&clients.cluster).await?;
    let mut rules = RulesKnown::All;
    if infrastructure {
        reader.infrastructure(args, more).await?;
    } else {
        reader.notes.push(
            "this is a tenant's cluster: DPUs, companions, and what the tenant's Pods may do can't be seen from here; \
             conditions of rules and Pods tell what the infrastructure cluster last said, and stay as they are while the agent doesn't \
             run or doesn't reach it"
                .to_owned(),
        );
        rules = reader.own_rules(namespace, more.agent_reports).await?;
    }
    if let Some((tenant, place)) = &clients.tenant {
        (reader.client, reader.place) = (tenant.clone(), Some(place.clone()));
    }
    let workloads = clients.tenant.is_some() || !infrastructure;
    let mut hosts = None;
    let mut attributes = ReadAttributes::unnamed();
    if workloads {
        reader.pods(namespace).await?;
        attributes = ReadAttributes::of_cluster(&reader.client, namespace, more.attributes).await;
        if more.agent_reports {
            hosts = reader.agent_reports(namespace).await?;
        }
    } else {
        reader.notes.push(
            "the tenant's Pods can't be seen from here: only those are explained whose companions carry everything \
             of them; name the tenant's cluster by --tenant-kubeconfig"
                .to_owned(),
        );
    }
    let place = "the cluster".to_owned();
    let Reader { objects, devices, claims, notes, .. } = reader;
    let admin = more.admin.cloned().unwrap_or_default();
    let source = Source {
        place,
        live: true,
        infrastructure,
        workloads,
        devices,
        claims,
        admin,
        rules,
        hosts,
        attributes,
        notes,
    };
    Ok((State::new(objects), source))
}

/// Whether the user may read what every question is about, Tenants or, in a tenant's cluster, rules. It is asked by a list of one object.
///
/// # Errors
/// The API server refuses it, or doesn't answer.
pub(crate) async fn may_read(clients: &Clients) -> Result<(), InputError> {
    let resource = match is_infrastructure(&clients.cluster).await? {
        true => ApiResource::erase::<Tenant>(&()),
        false => ApiResource::erase::<WorkloadRule>(&()),
    };
    let (api, resource) = of_kind(&clients.cluster, resource, None);
    let listed = in_time(api.list_metadata(&ListParams::default().limit(1))).await;
    listed.map(drop).map_err(|unread| Reader::new(clients.cluster.clone()).failed(&resource, unread))
}

/// Runs a command's calls of a cluster.
pub(crate) fn wait<T, E>(calls: impl Future<Output = Result<T, E>>) -> anyhow::Result<T>
where
    anyhow::Error: From<E>,
{
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(calls)?)
}

/// The one object of this name.
pub(super) fn named(name: &str) -> ListParams {
    ListParams::default().fields(&format!("metadata.name={name}"))
}

pub(crate) struct Reader {
    pub(super) client: Client,
    /// The cluster in messages; `None`: the one that every command reads.
    place: Option<String>,
    objects: Vec<Object>,
    notes: Vec<String>,
    unread: Unread,
    /// All that there is of devices has been read.
    devices: bool,
    claims: ClaimScope,
}

/// Whether the cluster has the kind Tenant. Any user may ask that, but not every user may list Tenants.
pub(crate) async fn is_infrastructure(client: &Client) -> Result<bool, InputError> {
    serves(client, &Tenant::api_version(&()), "Tenant").await
}

/// Whether the cluster has a kind in a version.
pub(super) async fn serves(client: &Client, api_version: &str, kind: &str) -> Result<bool, InputError> {
    match client.list_api_group_resources(api_version).await {
        Ok(known) => Ok(known.resources.iter().any(|resource| resource.kind == kind)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(InputError::new("the cluster", error)),
    }
}

impl Reader {
    pub(crate) fn new(client: Client) -> Self {
        let (objects, notes, unread) = (Vec::new(), Vec::new(), Unread::default());
        Self { client, place: None, objects, notes, unread, devices: false, claims: ClaimScope::Given }
    }

    /// The objects so far.
    pub(crate) fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// What has been read, and notes on what couldn't be.
    pub(crate) fn finish(self) -> (State, Vec<String>) {
        (State::new(self.objects), self.notes)
    }

    /// Objects of a kind, as messages name them.
    fn named(&self, plural: &str) -> String {
        match &self.place {
            Some(place) => format!("{plural} of {place}"),
            None => format!("the cluster's {plural}"),
        }
    }

    fn failed(&self, resource: &ApiResource, unread: Failure) -> InputError {
        InputError::new(self.named(&resource.plural), unread.why)
    }

    /// The kinds that may not be read.
    pub(super) fn unread(&self) -> &Unread {
        &self.unread
    }

    async fn infrastructure(&mut self, args: &ViewArgs, more: More<'_>) -> Result<(), InputError> {
        self.must::<Tenant>(None, ListParams::default()).await?;
        let namespace = self.namespace(args)?;
        let namespace = namespace.as_deref();
        self.must::<WorkloadRule>(namespace, ListParams::default()).await?;
        self.must::<Pod>(namespace, ListParams::default().labels(keys::RULE)).await?;
        if let Some(admin) = more.admin {
            // Who asks about a tenant's own rules may not be allowed to see the platform's.
            let required = !more.agent_reports;
            self.read::<AdminWorkloadRule>(required, Some(&admin.rules), ListParams::default()).await?;
            if namespace.is_some() {
                let companions = ListParams::default().labels(keys::RULE);
                self.read::<Pod>(required, Some(&admin.resources), companions).await?;
            }
        }
        self.must::<Node>(None, ListParams::default()).await?;
        let refused = "involvedObject.kind=WorkloadRule,reason=CompanionRefused";
        self.may::<Event>(namespace, ListParams::default().fields(refused)).await?;
        self.may::<Namespace>(None, ListParams::default().labels(keys::TENANT)).await?;
        self.may::<PriorityClass>(None, ListParams::default()).await?;
        if more.machines {
            self.may::<Machine>(None, ListParams::default()).await?;
        }
        if more.quotas {
            let admin = more.admin.filter(|_| namespace.is_some()).map(|admin| &*admin.resources);
            for namespace in [Some(namespace), admin.map(Some)].into_iter().flatten() {
                self.may::<ResourceQuota>(namespace, ListParams::default()).await?;
                self.may::<LimitRange>(namespace, ListParams::default()).await?;
            }
        }
        self.devices(namespace, more.admin).await
    }

    /// Reads the rules of a tenant's cluster. A user who may not read those of all namespaces reads those of the namespace that is
    /// asked about, and of the one in which agents look for rules by default.
    async fn own_rules(&mut self, namespace: Option<&str>, optional: bool) -> Result<RulesKnown, InputError> {
        let resource = ApiResource::erase::<WorkloadRule>(&());
        let refused = match self.list(&resource, None, ListParams::default()).await {
            Ok(()) => return Ok(RulesKnown::All),
            Err(unread) if unread.is_refused() && optional => unread.why,
            Err(unread) => return Err(self.failed(&resource, unread)),
        };
        let places = BTreeSet::from_iter(namespace.into_iter().chain([keys::ADMIN_NAMESPACE]));
        let mut read = Vec::new();
        for place in places {
            match self.list(&resource, Some(place), ListParams::default()).await {
                Ok(()) => read.push(place),
                Err(unread) if unread.is_refused() => {}
                Err(unread) => return Err(self.failed(&resource, unread)),
            }
        }
        if read.is_empty() {
            self.notes.push(format!(
                "rules may not be read, so whether one matches a workload isn't known: {refused}"
            ));
            return Ok(RulesKnown::None);
        }
        self.notes.push(format!(
            "only rules of {} may be read, so whether one of another namespace matches isn't known: {refused}",
            read.join(" and ")
        ));
        Ok(RulesKnown::Some)
    }

    /// Reads the Pods of a tenant's cluster, of one namespace or of all.
    async fn pods(&mut self, namespace: Option<&str>) -> Result<(), InputError> {
        let resource = ApiResource::erase::<Pod>(&());
        self.list(&resource, namespace, ListParams::default()).await.map_err(|mut unread| {
            if unread.is_refused() && namespace.is_none() {
                unread.why += "; with -n NAMESPACE those of one namespace are enough";
            }
            self.failed(&resource, unread)
        })
    }

    /// Reads what the agent reports in the tenant's cluster besides conditions of Pods. Returns the Nodes, which are others than those
    /// of the infrastructure cluster even if they have the same names; `None` if they may not be read.
    async fn agent_reports(&mut self, namespace: Option<&str>) -> Result<Option<Vec<Object>>, InputError> {
        let agents = format!("involvedObject.kind=Pod,reportingComponent={}", keys::AGENT);
        self.may::<Event>(namespace, ListParams::default().fields(&agents)).await?;
        let before = self.objects.len();
        let seen = self.sees::<Node>(None).await?;
        let nodes = self.objects.split_off(before);
        Ok(seen.then_some(nodes))
    }

    /// Reads devices, where a rule requests some. Claims of all namespaces are read, because others may hold the devices; a
    /// user who may not do so reads the tenant's, and those of admin rules.
    async fn devices(
        &mut self,
        namespace: Option<&str>,
        admin: Option<&AdminNamespaces>,
    ) -> Result<(), InputError> {
        let classes = self.sees::<DeviceClass>(None).await?;
        let is_rule = |object: &&Object| RuleKind::of(object).is_some();
        let asks = |object: &Object| {
            let spec = &object.value["spec"];
            template::kind(&spec["template"]) == Kind::Claim
                || spec["deviceClaims"].as_array().is_some_and(|claims| !claims.is_empty())
        };
        if !self.objects.iter().filter(is_rule).any(asks) {
            return Ok(());
        }
        let claims = self.sees::<ResourceClaim>(None).await?;
        if claims {
            self.claims = ClaimScope::All;
        } else if namespace.is_some() {
            let mut own = self.sees::<ResourceClaim>(namespace).await?;
            if let Some(admin) = admin {
                own &= self.sees::<ResourceClaim>(Some(&admin.resources)).await?;
            }
            if own {
                self.claims = ClaimScope::Own;
            }
        }
        self.devices = self.sees::<ResourceSlice>(None).await? && classes && claims;
        self.taint_rules().await
    }

    /// The namespace of the tenant that is meant; `None` where there are several.
    fn namespace(&self, args: &ViewArgs) -> Result<Option<String>, InputError> {
        let tenants: Vec<Tenant> = self.objects.iter().map(Object::read).collect::<Result<_, _>>()?;
        let named = |tenant: &&Tenant| {
            args.tenant.is_none() || tenant.metadata.name.as_deref() == args.tenant.as_deref()
        };
        let mut meant: Vec<&Tenant> = tenants.iter().filter(named).collect();
        if let Some(id) = args.tenant.as_ref().filter(|_| meant.is_empty()) {
            let names: Vec<&str> = tenants.iter().filter_map(|t| t.metadata.name.as_deref()).collect();
            let message = format!("there is no Tenant {id}; there are {}", names.join(", "));
            return Err(InputError::new("--tenant", message));
        }
        let first = meant.pop().map(Tenant::target_namespace);
        Ok(first.filter(|_| meant.is_empty()))
    }

    /// Reads all objects of a kind.
    pub(crate) async fn must<K: Resource<DynamicType = ()>>(
        &mut self,
        namespace: Option<&str>,
        params: ListParams,
    ) -> Result<(), InputError> {
        let resource = ApiResource::erase::<K>(&());
        self.list(&resource, namespace, params).await.map_err(|unread| self.failed(&resource, unread))
    }

    /// Reads all objects of a kind. It is no error if they may not be read, or if the cluster doesn't have the kind.
    pub(crate) async fn may<K: Resource<DynamicType = ()>>(
        &mut self,
        namespace: Option<&str>,
        params: ListParams,
    ) -> Result<(), InputError> {
        self.may_raw(&ApiResource::erase::<K>(&()), namespace, params).await.map(drop)
    }

    /// [`Self::may`] of all objects of a kind. Returns whether they may be read.
    async fn sees<K: Resource<DynamicType = ()>>(
        &mut self,
        namespace: Option<&str>,
    ) -> Result<bool, InputError> {
        self.may_raw(&ApiResource::erase::<K>(&()), namespace, ListParams::default()).await
    }

    /// [`Self::must`] where they are required, else [`Self::may`].
    async fn read<K: Resource<DynamicType = ()>>(
        &mut self,
        required: bool,
        namespace: Option<&str>,
        params: ListParams,
    ) -> Result<(), InputError> {
        if required {
            self.must::<K>(namespace, params).await
        } else {
            self.may::<K>(namespace, params).await
        }
    }

    /// The same of a kind without type. Returns whether they may be read.
    pub(crate) async fn may_raw(
        &mut self,
        resource: &ApiResource,
        namespace: Option<&str>,
        params: ListParams,
    ) -> Result<bool, InputError> {
        match self.list(resource, namespace, params).await {
            Err(unread) if unread.is_refused() => {
                self.unread.insert(resource.kind.clone());
                self.notes.push(format!("may not be read, so what they say is missing: {}", unread.why));
                Ok(false)
            }
            Err(unread) if !unread.is_no_kind() => Err(self.failed(resource, unread)),
            _ => Ok(true),
        }
    }

    async fn list(
        &mut self,
        resource: &ApiResource,
        namespace: Option<&str>,
        params: ListParams,
    ) -> Result<(), Failure> {
        let origin = Origin::new(self.named(&resource.plural));
        let of_kind = of_kind(&self.client, resource.clone(), namespace);
        let objects = &mut self.objects;
        let is_node = resource.kind == "Node";
        each(&of_kind, params, |mut object| {
            if is_node {
                trim_node(&mut object);
            }
            objects.extend(Object::new(origin.clone(), object));
            true
        })
        .await
    }
}

/// Removes what is most of a Node and what nothing reads: there may be thousands of them, and all are kept.
fn trim_node(node: &mut Value) {
    for (parent, field) in [("/metadata", "managedFields"), ("/status", "images")] {
        if let Some(parent) = node.pointer_mut(parent).and_then(Value::as_object_mut) {
            parent.remove(field);
        }
    }
}
